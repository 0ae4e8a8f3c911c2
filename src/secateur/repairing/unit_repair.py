"""Each unit cut and repaired by itself, for sensitivity: one pass over a few images serves every unit and every cut.

Only one unit is cut at a time, so its readers see the original network's activations less the channels that went, and
what they should put out is a linear function of the activations that they saw before:  y = W x + b. So the Gram of x
says all: that of any kept channels is a part of it, and no image is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Reader
from secateur.channels.zeroing import zeroed
from secateur.errors import RunError
from secateur.repairing.images import gather
from secateur.repairing.layer_solve import HELD_OUT, few_rows, generator, norm_behind, warn_of_few
from secateur.repairing.least_squares import CAREFUL, RIDGES, Rows, Sums, choose
from secateur.repairing.linear_rows import PLAIN, acts_plainly, exact, grid_of, inputs_at, rows_of_weight, spots
from secateur.repairing.lockstep import Walk

Change = tuple[Tensor, Tensor]  # a parameter or buffer, and what it is to hold for a while


@dataclass(frozen=True, eq=False)
class Seen:
    """What a reader saw: inputs of every HELD_OUT-th image apart from those of the others."""

    layer: Any
    norm: Any  # the batch norm that its output goes into, and nothing else does
    fitted: Sums | Rows
    held: Sums | Rows

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.fitted.rows + self.held.rows

    @cached_property
    def whole(self) -> Sums | Rows:
        """All of them."""
        parts = [part for part in (self.fitted, self.held) if part.rows]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]  # type: ignore[operator]


class UnitRepair:
    """`with units(name, kept):` the graph's model computes what it would with that unit cut and its readers repaired.

    how="solve": the readers get new weights on the kept channels, as `repair(layers="cut")` gives them. "bn": the batch
    norm right behind a reader gets new statistics. A reader behind another reader of the same unit (dense blocks) is
    repaired as if it saw the original's activations. Weights are put back afterwards, on errors too.
    """

    def __init__(self, graph: ChannelGraph, how: str, seen: dict[str, Seen], images: int) -> None:
        self.graph, self.how, self.seen, self.images = graph, how, seen, images
        self._known: dict[tuple[str, tuple[int, ...]], list[Change]] = {}

    @contextmanager
    def __call__(self, unit: str, kept: Sequence[int]) -> Iterator[None]:
        """The graph's model with this unit cut down to `kept` and repaired, for a while."""
        key = unit, tuple(kept)
        if key not in self._known:  # a race asks for the same cut many times
            self._known[key] = [change for reader in self._readers(unit) for change in self._changes(reader, key)]
        with zeroed(self.graph, {unit: kept}), torch.no_grad():
            before = [(tensor, tensor.detach().clone()) for tensor, _ in self._known[key]]
            try:
                for tensor, value in self._known[key]:
                    tensor.copy_(value)
                yield
            finally:
                for tensor, value in before:
                    tensor.copy_(value)

    def _readers(self, unit: str) -> list[Reader]:
        return [reader for reader in self.graph.units[unit].readers if reader.module in self.seen]

    def _changes(self, reader: Reader, key: tuple[str, tuple[int, ...]]) -> list[Change]:
        seen = self.seen[reader.module]
        columns = _columns_left(seen.layer, reader, self.graph.units[key[0]].width, key[1])
        if columns is None:
            return []
        return _solved(seen, columns) if self.how == "solve" else _normed(seen, columns)


@torch.no_grad()
def repair_each(
    graph: ChannelGraph,
    images: Tensor | Iterable[Any],
    *,
    how: str = "solve",
    positions: int = 64,
    seed: int = 0,
) -> UnitRepair:
    """What `sensitivity(..., repair=)` takes: every unit's cut is then judged after a repair of that unit alone.

    images: unlabelled, as for `repair`. They are read once, here.
    """
    if how not in ("solve", "bn"):
        raise RunError(f'how should be "solve" or "bn", not {how!r}')
    if positions < 1:
        raise RunError(f"positions should be at least 1, not {positions!r}")
    inputs = gather(graph, images)
    with evaluating(graph.model), generators_kept():
        walk = Walk(graph, graph.model, inputs, graph.liveness({}))
        readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
        seen: dict[str, Seen] = {}
        few = []
        for node in walk.nodes:
            walk.run(node, sides=(0,))
            if node.op == "call_module" and str(node.target) in readers and _is_solvable(walk, node):
                seen[str(node.target)] = found = _look(walk, node, positions, seed)
                few.append(few_rows(str(node.target), _width(found.layer), found.rows, walk.images))
            walk.free(node)
    if how == "solve":
        warn_of_few(walk.images, [one for one in few if one is not None], "A larger ridge is used there.")
    return UnitRepair(graph, how, seen, walk.images)


def _is_solvable(walk: Walk, node: fx.Node) -> bool:
    if not node.args or walk.traced.calls[str(node.target)] != 1:
        return False
    layer = walk.layer(node)
    return isinstance(layer, PLAIN) and acts_plainly(layer, walk.entering(node, 0, 0))


def _look(walk: Walk, node: fx.Node, positions: int, seed: int) -> Seen:
    layer, place = walk.layer(node), walk.nodes.index(node)
    first = 0
    sums: tuple[Any, Any] | None = None
    for chunk in range(len(walk.sizes)):
        x = walk.entering(node, 0, chunk)
        grid = grid_of(layer, walk.value(node, 0, chunk))
        if sums is None:
            kind = Rows if walk.images * min(positions, grid) < _width(layer) else Sums
            sums = kind(), kind()
        where = spots(len(x), grid, positions, generator(seed, place, chunk))
        rows = exact(inputs_at(layer, x, where))  # [N, P, groups, n]
        out = torch.arange(first, first + len(x)) % HELD_OUT == HELD_OUT - 1
        for part, images in zip(sums, (~out, out), strict=True):
            if bool(images.any()):
                some = rows[images].flatten(0, 1)
                part.add(some, some[..., :0])  # what is put out follows from what went in
        first += len(x)
    assert sums is not None
    norm = norm_behind(walk, node) if layer.bias is None else None
    return Seen(layer, norm, *sums)


def inputs_of(layer: Any) -> int:
    """Positions on its input-channel axis."""
    return int(getattr(layer, "in_channels", getattr(layer, "in_features", 0)))


def _width(layer: Any) -> int:
    """Weights of one filter."""
    return int(rows_of_weight(layer).shape[2])


def _columns_left(layer: Any, reader: Reader, width: int, kept: Sequence[int]) -> Tensor | None:
    """[groups, m] the columns of `rows_of_weight` that are left; None where groups keep different numbers of them."""
    gone = np.ones(width, dtype=bool)
    gone[list(kept)] = False
    weight = rows_of_weight(layer)  # [groups, o, n]
    channels = inputs_of(layer)
    stays = torch.ones(channels, dtype=torch.bool)
    stays[torch.from_numpy(reader.inputs[gone[reader.channels]].reshape(-1))] = False
    taps = len(weight) * weight.shape[2] // channels
    stays = stays.repeat_interleave(taps).view(len(weight), -1)  # [groups, n]
    counts = stays.sum(1)
    if bool((counts != counts[0]).any()) or not int(counts[0]):
        return None
    return stays.nonzero()[:, 1].view(len(weight), -1).to(weight.device)


def _solved(seen: Seen, columns: Tensor) -> list[Change]:
    layer, norm = seen.layer, seen.norm
    weight = rows_of_weight(layer)
    bias = torch.zeros_like(weight[:, :, 0]) if layer.bias is None else exact(layer.bias).reshape(weight.shape[:2])
    fitted, held = (part.narrowed(columns, weight, bias) if part.rows else part for part in (seen.fitted, seen.held))
    few = few_rows("", columns.shape[1], seen.rows, 1) is not None
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    start = weight.gather(2, index)
    fit = choose(fitted, held, start, bias, CAREFUL if few else RIDGES, layer.bias is not None or norm is not None)
    if fit is None or not bool(torch.isfinite(fit.weight).all()):
        return []
    whole = torch.zeros_like(weight).scatter(2, index, fit.weight)
    changes = [(layer.weight, whole.reshape(layer.weight.shape).to(layer.weight))]
    if layer.bias is not None:
        changes.append((layer.bias, fit.constant.reshape(-1).to(layer.bias)))
    elif norm is not None:
        changes.append((norm.running_mean, norm.running_mean - fit.constant.reshape(-1).to(norm.running_mean)))
    return changes


def _normed(seen: Seen, columns: Tensor) -> list[Change]:
    """Mean and variance of what the reader puts out, before and after the cut: as `how="bn"` of `repair`."""
    norm = seen.norm
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
