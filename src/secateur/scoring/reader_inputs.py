"""Inputs of every reader in one pass over unlabelled images: what closed-form repair and the metric `rebuilt` need.

A reader computes y = W x + b at every output position, so sums of products of x say everything about re-solving W.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.base.batches import call
from secateur.base.preserve_state import evaluating, generators_kept, nothing_compiled
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Reader
from secateur.errors import ScoreError
from secateur.scoring.evidence import ReaderGroup, ReaderInputs
from secateur.scoring.layer_rows import PLAIN, acts_plainly, grid_of, inputs_at, rows_of_weight, spots_of
from secateur.scoring.regression_sums import GramSums, KeptRows, Parts, RegressionSums, add_apart, held_apart, together
from secateur.scoring.unlabelled_images import Images, chunks, count_of

POSITIONS = 64  # output positions per image and layer, drawn at random
WIDEST = 5000  # inputs of a wider reader are treated as uncorrelated: their covariance would be too large to invert


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Inputs of one layer. Those of every fifth image are held out."""

    layer: Any
    fitted: RegressionSums
    held: RegressionSums

    @property
    def rows(self) -> int:
        """Number of rows in all."""
        return self.fitted.rows + self.held.rows

    @cached_property
    def whole(self) -> RegressionSums:
        """All rows together."""
        return together(self.fitted, self.held)


@dataclass(frozen=True, eq=False)
class SeenInputs:
    """Inputs of every reader that is a plain linear map and is called once, by layer name."""

    graph: ChannelGraph
    layers: dict[str, LayerInputs]
    num_images: int

    def units(self) -> dict[str, list[Reader]]:
        """Unit -> those of its readers that were seen; units without any are left out."""
        found = {n: [r for r in unit.readers if r.module in self.layers] for n, unit in self.graph.units.items()}
        return {name: readers for name, readers in found.items() if readers}

    def evidence(self) -> Iterator[ReaderInputs]:
        """What the metrics take, unit after unit. Covariances are computed as they are asked for."""
        for name, readers in self.units().items():
            groups = [group for reader in readers for group in _groups(self.layers[reader.module], reader)]
            yield ReaderInputs(name, self.graph.units[name].width, tuple(groups))


@runtime_checkable
class HasSeenInputs(Protocol):
    """Something that has made the pass already, such as the result of `repair_each`."""

    seen: SeenInputs


@torch.no_grad()
def collect_reader_inputs(
    graph: ChannelGraph, images: Images, *, positions: int = POSITIONS, seed: int = 0
) -> SeenInputs:
    """Inputs of every reader at up to `positions` output positions of each image, drawn at random from `seed`."""
    if positions < 1:
        raise ScoreError(f"positions must be at least 1, got {positions!r}")
    pass_ = _Pass(graph, positions, seed)
    with evaluating(graph.model), generators_kept(), pass_.hooked():
        for chunk in chunks(graph, images):
            call(graph.model, tree_map(lambda t: t.clone(), chunk))  # the network may write into its input
            pass_.next_chunk(count_of(chunk))
    return SeenInputs(graph, pass_.result(), pass_.num_images)


def weights_per_filter(layer: Any) -> int:
    """Number of weights of one filter."""
    return int(rows_of_weight(layer).shape[2])


def input_width(layer: Any) -> int:
    """Size of a layer's input-channel axis."""
    return int(getattr(layer, "in_channels", getattr(layer, "in_features", 0)))


class _Pass:
    """Hooks on all readers that add what they see, chunk by chunk."""

    def __init__(self, graph: ChannelGraph, positions: int, seed: int) -> None:
        self._graph, self._positions, self._seed = graph, positions, seed
        traced = graph.found.traced
        readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
        self._places = {
            str(node.target): place
            for place, node in enumerate(traced.graph.nodes)
            if node.op == "call_module" and str(node.target) in readers and traced.calls[str(node.target)] == 1
        }
        self._parts: dict[str, Parts] = {}
        self._chunk = self.num_images = 0

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Every forward within the block adds rows; the hooks are removed afterwards, on errors too."""
        model = self._graph.model
        handles = [model.get_submodule(n).register_forward_hook(partial(self._look, n)) for n in self._places]
        try:
            with nothing_compiled():  # compiled code does not see new hooks
                yield
        finally:
            for handle in handles:
                handle.remove()

    def next_chunk(self, num_images: int) -> None:
        """A chunk of this many images is done."""
        self._chunk += 1
        self.num_images += num_images

    def result(self) -> dict[str, LayerInputs]:
        """What was seen, in the order of the calls."""
        model = self._graph.model
        return {n: LayerInputs(model.get_submodule(n), *self._parts[n]) for n in self._places if n in self._parts}

    def _look(self, name: str, layer: nn.Module, args: tuple[Any, ...], y: Tensor) -> None:
        if name not in self._parts:
            if self._chunk or not args or not isinstance(layer, PLAIN) or not acts_plainly(layer, args[0]):
                return
            self._parts[name] = KeptRows(), KeptRows()
        numbers = range(self.num_images, self.num_images + len(y))
        images, fitted = held_apart(numbers)
        where = spots_of(numbers, grid_of(layer, y), self._positions, (self._seed, self._places[name]))[images]
        self._parts[name] = self._added(self._parts[name], fitted, inputs_at(layer, args[0], where, images).flatten(3))

    def _added(self, parts: Parts, fitted_images: int, rows: Tensor) -> Parts:
        """The fitted and held-out rows with rows [N, P, groups, n] of a chunk added."""
        add_apart(parts, fitted_images, rows, rows[..., :0])  # the outputs follow from the inputs
        fitted, held = parts
        if isinstance(fitted, GramSums) or isinstance(held, GramSums) or fitted.rows + held.rows < rows.shape[3]:
            return parts
        return fitted.summed(), held.summed()  # from here on the sums are smaller than the rows


def _groups(seen: LayerInputs, reader: Reader) -> Iterator[ReaderGroup]:
    """The reader's groups that read channels of the unit."""
    weights = rows_of_weight(seen.layer).cpu()  # [groups, o, n]; many small steps, which a GPU does no faster
    taps = weights.shape[2] * len(weights) // input_width(seen.layer)
    places = torch.from_numpy(reader.inputs)  # [channels, m]
    columns = (places.unsqueeze(2) * taps + torch.arange(taps)).flatten(1)  # [channels, m x taps], through all groups
    for group, weight in enumerate(weights):
        mine = (columns // weight.shape[1] == group).all(1)
        if bool(mine.any()):
            wide = weight.shape[1] > WIDEST
            covariance = seen.whole.variances(group) if wide else seen.whole.covariance(group)
            numbers = torch.from_numpy(reader.channels)[mine]
            yield ReaderGroup(numbers, columns[mine] % weight.shape[1], weight, covariance.cpu())
