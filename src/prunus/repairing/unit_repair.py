"""Each unit cut and repaired on its own, for sensitivity: one pass over a few images serves every unit and every cut.

Only one unit is cut at a time. So its readers see the original network's activations without the removed channels, and
their target is a linear function of what they saw before: y = W x + b. The Gram matrix of x is enough: the Gram matrix
of the kept channels is a part of it, and no image is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.surgery import zeroed
from prunus.graph.units import Reader
from prunus.repairing.solve import Change, norm_after, reader_changes, too_few_rows, warn_of_few_images
from prunus.scoring.passes import Images
from prunus.scoring.reader_inputs import POSITIONS, SeenInputs, collect_reader_inputs, input_width, weights_per_filter
from prunus.scoring.rows import rows_of_weight
from prunus.util.progress import Progress, shown, steps


class UnitRepair:
    """`with units(name, kept):` the graph's model computes what it would with that unit cut and its readers repaired.

    The readers get new weights on the kept channels, as from `repair(layers="cut")`. A reader that comes after another
    reader of the same unit (dense blocks) is repaired as if it saw the original activations. Weights are restored
    afterwards, on errors too.
    """

    how = "solve"

    def __init__(self, seen: SeenInputs) -> None:
        self.seen, self.graph = seen, seen.graph
        traced, model = seen.graph.analysis.traced, seen.graph.model
        nodes = {str(node.target): node for node in traced.graph.nodes if node.op == "call_module"}
        self._norms: dict[str, Any] = {  # layer -> the batch norm after it; None for layers with a bias
            name: norm_after(traced, model, nodes[name]) if inputs.layer.bias is None else None
            for name, inputs in seen.layers.items()
        }
        self._changes: dict[tuple[str, tuple[int, ...]], list[Change]] = {}  # of each cut, as often as it is asked for

    @contextmanager
    def __call__(self, unit: str, kept: Sequence[int]) -> Iterator[None]:
        key = unit, tuple(kept)
        if key not in self._changes:  # a race asks for the same cut many times
            self._changes[key] = []
            for reader in self.seen.units().get(unit, ()):
                seen = self.seen.layers[reader.module]
                columns = _columns_left(seen.layer, reader, self.graph.units[unit].width, kept)
                if columns is not None:
                    self._changes[key] += reader_changes(seen, self._norms[reader.module], columns)
        with zeroed(self.graph, {unit: kept}), torch.no_grad():
            before = [(tensor, tensor.detach().clone()) for tensor, _ in self._changes[key]]
            try:
                for tensor, value in self._changes[key]:
                    tensor.copy_(value)
                yield
            finally:
                for tensor, value in before:
                    tensor.copy_(value)


@torch.no_grad()
def repair_each(
    graph: ChannelGraph,
    images: Images,
    *,
    positions: int = POSITIONS,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> UnitRepair:
    """What `sensitivity(..., repair=)` takes: every unit's cut is then evaluated after a repair of that unit alone.

    `score(graph, units, metric="rebuilt")` uses what this pass has seen.

    Args:
        graph: The traced network.
        images: Unlabelled, as for `repair`. They are read once, here.
        positions: Positions of a feature map that are taken of an image, at most.
        seed: Chooses them.
        progress: False shows nothing; a function is called with the number of images that were read, and None.
    """
    with shown(progress, steps("images")) as report:
        seen = collect_reader_inputs(graph, images, positions=positions, seed=seed, progress=report)
    layers = [(name, weights_per_filter(inputs.layer), inputs.rows) for name, inputs in seen.layers.items()]
    few = [layer for layer in layers if too_few_rows(*layer[1:])]
    warn_of_few_images(seen.num_images, few, "A larger ridge is used there.")
    return UnitRepair(seen)


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
