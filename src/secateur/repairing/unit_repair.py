"""Each unit cut and repaired on its own, for sensitivity: one pass over a few images serves every unit and every cut.

Only one unit is cut at a time. So its readers see the original network's activations without the removed channels, and
their target is a linear function of what they saw before: y = W x + b. The Gram matrix of x is enough: the Gram matrix
of the kept channels is a part of it, and no image is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Reader
from secateur.channels.zeroing import zeroed
from secateur.errors import RunError
from secateur.repairing.layer_solve import few_rows, norm_behind, start_of, warn_of_few
from secateur.repairing.least_squares import CAREFUL, RIDGES, choose
from secateur.scoring.layer_rows import rows_of_weight
from secateur.scoring.reader_inputs import (
    POSITIONS,
    LayerInputs,
    SeenInputs,
    collect_reader_inputs,
    input_width,
    weights_per_filter,
)
from secateur.scoring.unlabelled_images import Images

Change = tuple[Tensor, Tensor]  # a parameter or buffer, and its value while the unit is cut


class UnitRepair:
    """`with units(name, kept):` the graph's model computes what it would with that unit cut and its readers repaired.

    how="solve": the readers get new weights on the kept channels, as `repair(layers="cut")` gives them. "bn": the batch
    norm right after a reader gets new statistics. A reader that comes after another reader of the same unit (dense
    blocks) is repaired as if it saw the original activations. Weights are restored afterwards, on errors too.
    """

    def __init__(self, how: str, seen: SeenInputs) -> None:
        self.how, self.seen, self.graph = how, seen, seen.graph
        self._norms = _norms(seen)
        self._known: dict[tuple[str, tuple[int, ...]], list[Change]] = {}

    @contextmanager
    def __call__(self, unit: str, kept: Sequence[int]) -> Iterator[None]:
        """The graph's model with this unit cut down to `kept` and repaired, inside the block."""
        key = unit, tuple(kept)
        if key not in self._known:  # a race asks for the same cut many times
            self._known[key] = [c for reader in self.seen.units().get(unit, ()) for c in self._changes(reader, key)]
        with zeroed(self.graph, {unit: kept}), torch.no_grad():
            before = [(tensor, tensor.detach().clone()) for tensor, _ in self._known[key]]
            try:
                for tensor, value in self._known[key]:
                    tensor.copy_(value)
                yield
            finally:
                for tensor, value in before:
                    tensor.copy_(value)

    def _changes(self, reader: Reader, key: tuple[str, tuple[int, ...]]) -> list[Change]:
        seen, norm = self.seen.layers[reader.module], self._norms[reader.module]
        columns = _columns_left(seen.layer, reader, self.graph.units[key[0]].width, key[1])
        if columns is None:
            return []
        return _solved(seen, norm, columns) if self.how == "solve" else _normed(seen, norm, columns)


@torch.no_grad()
def repair_each(
    graph: ChannelGraph, images: Images, *, how: str = "solve", positions: int = POSITIONS, seed: int = 0
) -> UnitRepair:
    """What `sensitivity(..., repair=)` takes: every unit's cut is then evaluated after a repair of that unit alone.

    images: unlabelled, as for `repair`. They are read once, here. `score(graph, units, metric="rebuilt")` uses what
    this pass has seen.
    """
    if how not in ("solve", "bn"):
        raise RunError(f'how must be "solve" or "bn", got {how!r}')
    seen = collect_reader_inputs(graph, images, positions=positions, seed=seed)
    if how == "solve":
        few = [few_rows(n, weights_per_filter(s.layer), s.rows, seen.num_images) for n, s in seen.layers.items()]
        warn_of_few(seen.num_images, [one for one in few if one is not None], "A larger ridge is used there.")
    return UnitRepair(how, seen)


def _norms(seen: SeenInputs) -> dict[str, Any]:
    """Layer -> the batch norm after it; None for layers with a bias."""
    traced, model = seen.graph.found.traced, seen.graph.model
    nodes = {str(node.target): node for node in traced.graph.nodes if node.op == "call_module"}
    return {
        name: norm_behind(traced, model, nodes[name]) if inputs.layer.bias is None else None
        for name, inputs in seen.layers.items()
    }


def _columns_left(layer: Any, reader: Reader, width: int, kept: Sequence[int]) -> Tensor | None:
    """[groups, m] the columns of `rows_of_weight` that are kept; None if groups keep different numbers of them."""
    gone = np.ones(width, dtype=bool)
    gone[list(kept)] = False
    weight = rows_of_weight(layer)  # [groups, o, n]
    channels = input_width(layer)
    stays = torch.ones(channels, dtype=torch.bool)
    stays[torch.from_numpy(reader.inputs[gone[reader.channels]].reshape(-1))] = False
    taps = len(weight) * weight.shape[2] // channels
    stays = stays.repeat_interleave(taps).view(len(weight), -1)  # [groups, n]
    counts = stays.sum(1)
    if bool((counts != counts[0]).any()) or not int(counts[0]):
        return None
    return stays.nonzero()[:, 1].view(len(weight), -1).to(weight.device)


def _solved(seen: LayerInputs, norm: Any, columns: Tensor) -> list[Change]:
    layer, whole = seen.layer, start_of(seen.layer, norm)
    weight, bias = whole.weight, whole.bias
    fitted, held = (part.narrowed(columns, weight, bias) if part.rows else part for part in (seen.fitted, seen.held))
    few = few_rows("", columns.shape[1], seen.rows, 1) is not None
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    start = replace(whole, weight=weight.gather(2, index))
    fit = choose(fitted, held, start, CAREFUL if few else RIDGES)
    if fit is None or not bool(torch.isfinite(fit.weight).all()):
        return []
    solved = torch.zeros_like(weight).scatter(2, index, fit.weight)
    changes = [(layer.weight, solved.reshape(layer.weight.shape).to(layer.weight))]
    if layer.bias is not None:
        changes.append((layer.bias, fit.constant.reshape(-1).to(layer.bias)))
    elif norm is not None:
        changes.append((norm.running_mean, norm.running_mean - fit.constant.reshape(-1).to(norm.running_mean)))
    return changes


def _normed(seen: LayerInputs, norm: Any, columns: Tensor) -> list[Change]:
    """Mean and variance of the reader's output before and after the cut, as in `repair(how="bn")`."""
    if norm is None:
        return []
    weight = rows_of_weight(seen.layer)
    none = torch.zeros_like(weight[:, :, 0])
    cut = torch.zeros_like(weight)
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    cut.scatter_(2, index, weight.gather(2, index))
    every = torch.arange(weight.shape[2], device=weight.device).expand(len(weight), -1)
    before, after = (seen.whole.narrowed(every, w, none) for w in (weight, cut))
    moved = (after.mean() - before.mean()).reshape(-1)
    ratio = torch.where(before.variance() > 0, after.variance() / before.variance(), 1.0).reshape(-1)
    return [
        (norm.running_mean, norm.running_mean + moved.to(norm.running_mean)),
        (norm.running_var, norm.running_var * ratio.to(norm.running_var)),
    ]
