"""Inputs of every reader in one pass over unlabelled images: what closed-form repair and the metric `rebuilt` need.

A reader computes y = W x + b at every output position, so sums of products of x say everything about re-solving W.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Reader
from prunus.scoring.evidence import Contributions, ReaderGroup, ReaderInputs
from prunus.scoring.gram_sums import RegressionSums, SplitRows, held_apart
from prunus.scoring.output_weights import NewLayer, ProbeImages, images_are_independent
from prunus.scoring.passes import Images, chunks
from prunus.scoring.rows import PLAIN, acts_plainly, grid_of, inputs_at, rows_of_weight, spots_of
from prunus.scoring.taps import hooked
from prunus.util.batches import call, count_images, device_of
from prunus.util.progress import Progress, warn_once
from prunus.util.state import evaluating, generators_kept

logger = logging.getLogger(__name__)

SHOWN = 5  # layers in a warning
FEW_IMAGES = "few images"  # what several warnings are about
POSITIONS = 64  # output positions per image and layer, drawn at random
PROBE_IMAGES = 32  # held-out images on which the effect of a cut on the network's outputs is measured
PIXELS = 8 * 3 * 224 * 224  # numbers in the images that run through the network at a time
WIDEST = 5000  # inputs of a wider reader are treated as uncorrelated: their covariance would be too large to invert


class LayerInputs(SplitRows):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    @property
    def unprobed(self) -> RegressionSums:
        """The rows of images that are no probe images; all rows if there are too few images for that."""
        return self.fitted if self.fitted.rows and self.held_out.rows else self.whole


@dataclass(frozen=True, eq=False)
class SeenInputs:
    """Inputs of every reader that is a plain linear map and is called once, by layer name."""

    graph: ChannelGraph
    layers: dict[str, LayerInputs]
    num_images: int
    probe: ProbeImages | None = None  # some of the held-out images
    known: frozenset[str] = frozenset()  # units whose scores are known already: they are left out

    def units(self) -> dict[str, list[Reader]]:
        """Unit -> those of its readers that were seen; units without any are left out."""
        seen = {n: [r for r in unit.readers if r.module in self.layers] for n, unit in self.graph.units.items()}
        return {name: readers for name, readers in seen.items() if readers and name not in self.known}

    def of(self, graph: ChannelGraph) -> SeenInputs | None:
        """The same for another graph of the same network; None if its units have readers that were not looked at."""
        looked = {reader.module for unit in self.graph.units.values() for reader in unit.readers}
        wanted = {reader.module for unit in graph.units.values() for reader in unit.readers}
        return replace(self, graph=graph) if wanted <= looked and graph.model is self.graph.model else None

    def evidence(self) -> Iterator[ReaderInputs]:
        """What `rebuilt` takes, unit after unit. Covariances are computed as they are asked for."""
        sizes = {name: (seen.unprobed.rows, weights_per_filter(seen.layer)) for name, seen in self.layers.items()}
        weak = [f"{name} ({rows:,} rows for {n:,} inputs)" for name, (rows, n) in sizes.items() if rows < n]
        if weak:
            more = f" and {len(weak) - SHOWN} more" if len(weak) > SHOWN else ""
            warn_once(
                logger,
                FEW_IMAGES,
                "%d images are few: the errors of channels that these layers read are uncertain and come from a shrunk "
                "covariance: %s%s",
                *(self.num_images, ", ".join(weak[:SHOWN]), more),
            )
        output_weights = {} if self.probe is None else self.probe.output_weights(list(self.layers))
        for name, readers in self.units().items():
            places: list[tuple[str, int]] = []  # layer and number of each group
            groups: list[ReaderGroup] = []
            for reader in readers:
                sums, of_layer = self.layers[reader.module].unprobed, output_weights.get(reader.module)
                for number, weight, channels, columns in _groups(self.layers[reader.module].layer, reader):
                    wide = weight.shape[1] > WIDEST
                    covariance = (sums.variances(number) if wide else sums.covariance(number)).cpu()
                    outputs = slice(number * len(weight), (number + 1) * len(weight))
                    root = None if of_layer is None else of_layer.root(outputs)
                    places.append((reader.module, number))
                    groups.append(ReaderGroup(channels, columns, weight, covariance, sums.rows, root))
            change = None if self.probe is None else partial(self._change, places)
            yield ReaderInputs(name, self.graph.units[name].width, tuple(groups), change)

    def _change(self, places: list[tuple[str, int]], weights: Sequence[Tensor]) -> float:
        """The change of the outputs for probe images if the groups at `places` have other weights but the same means
        of their outputs."""
        assert self.probe is not None
        layers: dict[str, NewLayer] = {}
        for (name, number), new in zip(places, weights, strict=True):
            seen = self.layers[name]
            old = rows_of_weight(seen.layer).cpu()  # [groups, o, n]
            rows, constant = layers.setdefault(name, (old.clone(), torch.zeros_like(old[:, :, 0])))
            rows[number] += new - old[number]
            constant[number] += (old[number] - new) @ seen.unprobed.means(number).cpu()
        return self.probe.change(layers)


@runtime_checkable
class HasSeenInputs(Protocol):
    """Something that has made the pass already, such as the result of `repair_each`."""

    seen: SeenInputs


@torch.no_grad()
def collect_reader_inputs(
    graph: ChannelGraph,
    images: Images,
    *,
    positions: int = POSITIONS,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> SeenInputs:
    """Inputs of every reader at up to `positions` output positions of each image, drawn at random from `seed`.

    progress: called with the number of images that were read, and None.
    """
    if positions < 1:
        raise ScoreError(f"positions must be at least 1, got {positions!r}")
    model, traced = graph.model, graph.analysis.traced
    readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
    places = {
        str(node.target): place
        for place, node in enumerate(traced.graph.nodes)
        if node.op == "call_module" and str(node.target) in readers and traced.calls[str(node.target)] == 1
    }
    seen: dict[str, LayerInputs] = {}
    first: Any = None  # the first images, which serve as probe images if there are so few that none is held out
    held: Any = None  # the first held-out images
    num_images = 0  # before the images that run

    def look(name: str, layer: nn.Module, args: tuple[Any, ...], y: Tensor) -> None:
        if name not in seen:
            if num_images or not args or not isinstance(layer, PLAIN) or not acts_plainly(layer, args[0]):
                return
            seen[name] = LayerInputs(layer)
        numbers = range(num_images, num_images + len(y))
        order, num_fitted = held_apart(numbers)
        where = spots_of(numbers, grid_of(layer, y), positions, (seed, places[name]))[order]
        rows = inputs_at(layer, args[0], where, order).flatten(3)  # [N, P, groups, n]
        seen[name].add(num_fitted, rows, rows[..., :0])  # the outputs follow from the inputs

    with evaluating(model), generators_kept(), hooked(model, places, look, after=True):
        for chunk in chunks(graph, images):
            # On a CPU so many images at a time run that their activations stay in its caches.
            count, numbers = count_images(chunk), sum(t.numel() for t in tree_leaves(chunk) if isinstance(t, Tensor))
            fits = device_of(model).type != "cpu" or bool(traced.guards)
            at_once = count if fits else max(1, min(count, PIXELS * count // max(numbers, 1)))
            for start in range(0, count, at_once):
                few = tree_map(lambda t, i=start, n=at_once: t[i : i + n], chunk)
                call(model, tree_map(lambda t: t.clone(), few))  # the network may write into its input
                order, fitted = held_apart(range(num_images, num_images + count_images(few)))
                others = tree_map(lambda t, some=order[fitted:]: t[some.to(t.device)], few)
                if first is None:
                    first, held = few, others
                elif count_images(held) < PROBE_IMAGES:
                    held = tree_map(lambda a, b: torch.cat([a, b])[:PROBE_IMAGES], held, others)
                num_images += count_images(few)
                progress(num_images, None)
    probed = held if count_images(held) else first
    probe: ProbeImages | None = None
    if not traced.guards or images_are_independent(model, probed):
        probe = ProbeImages(graph, probed)
    else:
        logger.warning(
            "the network's code depends on the batch size: errors of channels are weighed by the layers that read "
            "them, and not by what they do to the network's outputs"
        )
    in_order = {name: seen[name] for name in places if name in seen}  # of the calls
    return SeenInputs(graph, in_order, num_images, probe)


def weights_per_filter(layer: Any) -> int:
    return int(rows_of_weight(layer).shape[2])


def input_width(layer: Any) -> int:
    return int(getattr(layer, "in_channels", getattr(layer, "in_features", 0)))


def _groups(layer: Any, reader: Reader) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """The reader's groups that read channels of the unit: number, weight [o, n], the channels [a] and their positions
    [a, t] among the group's inputs."""
    weights = rows_of_weight(layer).cpu()  # [groups, o, n]; many small steps, which a GPU does no faster
    taps = weights.shape[2] * len(weights) // input_width(layer)
    places = torch.from_numpy(reader.inputs)  # [channels, m]
    columns = (places.unsqueeze(2) * taps + torch.arange(taps)).flatten(1)  # [channels, m x taps], through all groups
    for number, weight in enumerate(weights):
        mine = (columns // weight.shape[1] == number).all(1)
        if bool(mine.any()):
            yield number, weight, torch.from_numpy(reader.channels)[mine], columns[mine] % weight.shape[1]


def contributions(seen: SeenInputs) -> Iterator[Contributions]:
    """What each channel adds to the outputs of its readers, for every unit, one after another.

    Channel i contributes sum over its inputs of weight x input to an output. Two channels have the mean product

        C_ij = sum over inputs s of i, t of j of (W'W)_st E[x_s x_t],

    summed over readers. Inputs of very wide readers are taken as uncorrelated.
    """
    for name, readers in seen.units().items():
        width = seen.graph.units[name].width
        products = torch.zeros(width, width, dtype=torch.float64)
        squares = torch.zeros(width, dtype=torch.float64)
        for reader in readers:
            sums = seen.layers[reader.module].whole
            for number, weight, channels, inputs in _groups(seen.layers[reader.module].layer, reader):
                a, t = inputs.shape
                means = (weight * sums.means(number).cpu())[:, inputs].sum(2)  # [o, a] mean contribution
                if weight.shape[1] > WIDEST:
                    variances = (weight.square().sum(0) * sums.variances(number).cpu())[inputs].sum(1)
                    more = torch.diag(variances)
                else:
                    both = (weight.T @ weight) * sums.covariance(number).cpu()  # [n, n]
                    more = both[inputs.flatten()][:, inputs.flatten()].view(a, t, a, t).sum((1, 3))
                products[channels[:, None], channels] += means.T @ means + more
                squares[channels] += weight.square().sum(0)[inputs].sum(1)
        yield Contributions(name, products, squares.sqrt())
