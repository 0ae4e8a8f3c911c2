"""Inputs of every reader in one pass over unlabelled images: what closed-form repair and the metric `rebuilt` need.

A reader computes y = W x + b at every output position, so sums of products of x say everything about re-solving W.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Reader
from prunus.score.evidence import Contributions, ReaderGroup, ReaderInputs
from prunus.score.gram_sums import GramSums, KeptRows, Parts, RegressionSums, add_apart, held_apart, together
from prunus.score.output_weights import Judges, NewLayer, Stakes, takes_any_batch
from prunus.score.passes import Images, chunks, count_of
from prunus.score.rows import PLAIN, acts_plainly, grid_of, inputs_at, rows_of_weight, spots_of
from prunus.util.batches import call, device_of
from prunus.util.state import evaluating, generators_kept, nothing_compiled

log = logging.getLogger(__name__)

SHOWN = 5  # layers in a warning
POSITIONS = 64  # output positions per image and layer, drawn at random
JUDGES = 32  # held-out images on which the effect of a cut on the network's outputs is measured
PIXELS = 8 * 3 * 224 * 224  # numbers in the images that run through the network at a time
WIDEST = 5000  # inputs of a wider reader are treated as uncorrelated: their covariance would be too large to invert

Place = tuple[str, int]  # a layer and one of its groups


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

    @property
    def unseen(self) -> RegressionSums:
        """The rows of the images that do not judge; all rows if there are too few images for that."""
        return self.fitted if self.fitted.rows and self.held.rows else self.whole

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
    judges: Judges | None = None  # some of the held-out images

    def units(self) -> dict[str, list[Reader]]:
        """Unit -> those of its readers that were seen; units without any are left out."""
        found = {n: [r for r in unit.readers if r.module in self.layers] for n, unit in self.graph.units.items()}
        return {name: readers for name, readers in found.items() if readers}

    def evidence(self) -> Iterator[ReaderInputs]:
        """What the metrics take, unit after unit. Covariances are computed as they are asked for."""
        self._warn_of_weak_curves()
        stakes = self.judges.stakes(list(self.layers)) if self.judges is not None else {}
        for name, readers in self.units().items():
            places: list[Place] = []
            groups: list[ReaderGroup] = []
            for reader in readers:
                for number, group in _groups(self.layers[reader.module], reader, stakes.get(reader.module)):
                    places.append((reader.module, number))
                    groups.append(group)
            change = None if self.judges is None else partial(self._change, places)
            yield ReaderInputs(name, self.graph.units[name].width, tuple(groups), change)

    def _warn_of_weak_curves(self) -> None:
        sizes = {name: (seen.unseen.rows, weights_per_filter(seen.layer)) for name, seen in self.layers.items()}
        weak = [f"{name} ({rows:,} rows for {n:,} inputs)" for name, (rows, n) in sizes.items() if rows < n]
        if weak:
            log.warning(
                "%d images are few: the errors of channels that these layers read are uncertain and come from a shrunk "
                "covariance: %s",
                self.num_images,
                ", ".join(weak[:SHOWN]) + (f" and {len(weak) - SHOWN} more" if len(weak) > SHOWN else ""),
            )

    def _change(self, places: list[Place], weights: Sequence[Tensor]) -> float:
        """What the judges say of the layers' groups at `places` with other weights, the means of their outputs kept."""
        assert self.judges is not None
        layers: dict[str, NewLayer] = {}
        for (name, number), new in zip(places, weights, strict=True):
            seen = self.layers[name]
            old = rows_of_weight(seen.layer).cpu()  # [groups, o, n]
            rows, constant = layers.setdefault(name, (old.clone(), torch.zeros_like(old[:, :, 0])))
            rows[number] += new - old[number]
            constant[number] += (old[number] - new) @ seen.unseen.means(number).cpu()
        return self.judges.change(layers)


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
            for few in _few_at_once(graph, chunk):
                call(graph.model, tree_map(lambda t: t.clone(), few))  # the network may write into its input
                pass_.next_chunk(few)
    return SeenInputs(graph, pass_.result(), pass_.num_images, pass_.judges())


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
        traced = graph.analysis.traced
        readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
        self._places = {
            str(node.target): place
            for place, node in enumerate(traced.graph.nodes)
            if node.op == "call_module" and str(node.target) in readers and traced.calls[str(node.target)] == 1
        }
        self._parts: dict[str, Parts] = {}
        self._held: list[Any] = []
        self._few: Any = None  # the first images, which judge if there are so few that none is held out
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

    def next_chunk(self, images: Any) -> None:
        """A chunk of images is done."""
        order, fitted = held_apart(range(self.num_images, self.num_images + count_of(images)))
        self._held.append(tree_map(lambda t: t[order[fitted:].to(t.device)], images))
        self._few = images if self._few is None else self._few
        self._chunk += 1
        self.num_images += count_of(images)
        if sum(map(count_of, self._held)) > JUDGES:
            self._held = [tree_map(lambda t: t[:JUDGES], _joined(self._held))]

    def judges(self) -> Judges | None:
        """The first held-out images; None if the network takes one batch size only."""
        images = _joined(self._held)
        images = images if count_of(images) else self._few
        if not self._graph.analysis.traced.guards or takes_any_batch(self._graph.model, images):
            return Judges(self._graph, images)
        log.warning(
            "the network's code depends on the batch size: errors of channels are weighed by the layers that read "
            "them, and not by what they do to the network's outputs"
        )
        return None

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


def _few_at_once(graph: ChannelGraph, chunk: Any) -> Iterator[Any]:
    """The images of a chunk, on a CPU so many at a time that their activations stay in its caches."""
    count, numbers = count_of(chunk), sum(t.numel() for t in tree_leaves(chunk) if isinstance(t, Tensor))
    fits = device_of(graph.model).type != "cpu" or bool(graph.analysis.traced.guards)
    at_once = count if fits else max(1, min(count, PIXELS * count // max(numbers, 1)))
    for start in range(0, count, at_once):
        yield tree_map(lambda t, i=start: t[i : i + at_once], chunk)


def _joined(parts: list[Any]) -> Any:
    return tree_map(lambda *some: torch.cat(some), *parts)


def _groups(seen: LayerInputs, reader: Reader, stakes: Stakes | None) -> Iterator[tuple[int, ReaderGroup]]:
    """The reader's groups that read channels of the unit, by number."""
    weights = rows_of_weight(seen.layer).cpu()  # [groups, o, n]; many small steps, which a GPU does no faster
    taps = weights.shape[2] * len(weights) // input_width(seen.layer)
    places = torch.from_numpy(reader.inputs)  # [channels, m]
    columns = (places.unsqueeze(2) * taps + torch.arange(taps)).flatten(1)  # [channels, m x taps], through all groups
    sums = seen.unseen
    for group, weight in enumerate(weights):
        mine = (columns // weight.shape[1] == group).all(1)
        if bool(mine.any()):
            wide = weight.shape[1] > WIDEST
            covariance = sums.variances(group) if wide else sums.covariance(group)
            numbers = torch.from_numpy(reader.channels)[mine]
            part = slice(group * len(weight), (group + 1) * len(weight))
            stake = None if stakes is None else stakes.root(part)
            found = ReaderGroup(numbers, columns[mine] % weight.shape[1], weight, covariance.cpu(), sums.rows, stake)
            yield group, found


# What each channel adds to the outputs of its readers, from the sums that `reader_inputs` collects.


def contributions(seen: SeenInputs) -> Iterator[Contributions]:
    """Contributions of every unit, one after another.

    Channel i contributes sum over its inputs of weight x input to an output. Two channels have the mean product

        C_ij = sum over inputs s of i, t of j of (W'W)_st E[x_s x_t],

    summed over readers. Inputs of very wide readers are taken as uncorrelated.
    """
    for name, readers in seen.units().items():
        width = seen.graph.units[name].width
        products = torch.zeros(width, width, dtype=torch.float64)
        squares = torch.zeros(width, dtype=torch.float64)
        for reader in readers:
            for channels, more, norms in _of_reader(seen.layers[reader.module], reader):
                products[channels[:, None], channels] += more
                squares[channels] += norms
        yield Contributions(name, products, squares.sqrt())


def _of_reader(seen: LayerInputs, reader: Reader) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each group of the reader: the unit's channels, the products [a, a] and the squared norms [a]."""
    weights = rows_of_weight(seen.layer).cpu()  # [groups, o, n]
    taps = weights.shape[2] * len(weights) // input_width(seen.layer)
    places = torch.from_numpy(reader.inputs)  # [channels, m]
    columns = (places.unsqueeze(2) * taps + torch.arange(taps)).flatten(1)  # [channels, m x taps]
    for group, weight in enumerate(weights):
        mine = (columns // weight.shape[1] == group).all(1)
        if bool(mine.any()):
            inputs = columns[mine] % weight.shape[1]  # [a, t]
            numbers = torch.from_numpy(reader.channels)[mine]
            yield numbers, _products(seen.whole, group, weight, inputs), weight.square().sum(0)[inputs].sum(1)


def _products(sums: RegressionSums, group: int, weight: Tensor, inputs: Tensor) -> Tensor:
    """C [a, a] for the inputs [a, t] of each channel."""
    means = (weight * _mean(sums, group))[:, inputs].sum(2)  # [o, a] mean contribution
    if weight.shape[1] > WIDEST:
        variances = (weight.square().sum(0) * sums.variances(group).cpu())[inputs].sum(1)
        return means.T @ means + torch.diag(variances)
    both = (weight.T @ weight) * sums.covariance(group).cpu()  # [n, n]
    a, t = inputs.shape
    return means.T @ means + both[inputs.flatten()][:, inputs.flatten()].view(a, t, a, t).sum((1, 3))


def _mean(sums: RegressionSums, group: int) -> Tensor:
    """[n] mean of the inputs."""
    return (sums.x[group] / sums.rows if isinstance(sums, GramSums) else sums.x[group].mean(0)).cpu()
