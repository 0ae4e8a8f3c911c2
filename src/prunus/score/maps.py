"""Whole feature maps of a sample of images, for the metrics that need them: as many units in a pass as memory holds."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import as_call
from prunus.graph.units import Indices
from prunus.score.collect import usable_classes
from prunus.score.evidence import Maps, Scatter
from prunus.score.passes import Sample, walk
from prunus.score.scores import GIB, Where
from prunus.score.taps import Slot, Tap, TapLocations, gather, locate_taps, watched
from prunus.tasks import Task
from prunus.util.batches import Batches
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

# Accumulate feature maps batch by batch: whole, or as sums of products whose size stays the same.


class MapAccumulator(ABC):
    """The maps of one slot. A tap shows a batch's maps to `see`; `add` keeps them when the batch is done."""

    def __init__(self, tap: str, slot: Slot) -> None:
        self.tap, self.slot = tap, slot
        self._pending: list[Tensor] = []  # [N, n, d] of each call of the layer
        self._sides: list[tuple[int, int]] = []  # height and width of each

    def see(self, x: Tensor) -> None:
        """The tensor that enters the layer in one of its calls."""
        self._sides = [*self._sides[: len(self._pending)], _sides(x, self.slot)]
        self._pending.append(gather(x, self.slot))

    def add(self, batch: int, mine: Tensor, labels: Tensor, classes: int) -> None:
        """Keep the images `mine` (a mask) of the batch, which have these labels."""
        calls, self._pending = self._pending, []
        if not calls:
            raise ScoreError(f"batch {batch} does not run through {self.tap}, unlike the example")
        maps = torch.cat(calls, 2)
        maps = maps[mine.to(maps.device)].cpu()
        if not bool(torch.isfinite(maps).all()):
            raise ScoreError(
                f"batch {batch}: activations of unit {self.slot.unit} that enter {self.tap} are NaN or infinite; "
                "check the images and the weights"
            )
        self._take(maps, labels, classes)

    def _height(self) -> int:
        """Rows of a map; the maps of several calls of a layer are stacked if they are equally wide."""
        same = len({width for _, width in self._sides}) == 1
        return sum(height for height, _ in self._sides) if same else 1

    @abstractmethod
    def _take(self, maps: Tensor, labels: Tensor, classes: int) -> None:
        """Keep maps [N, n, d] of images with these labels; `classes` is the number of classes."""

    @abstractmethod
    def maps(self, labels: Tensor, memory: int) -> Maps:
        """All maps that were kept; `labels` are those of all batches, concatenated."""


class WholeMapAccumulator(MapAccumulator):
    """Keeps the maps themselves."""

    def __init__(self, tap: str, slot: Slot) -> None:
        super().__init__(tap, slot)
        self._parts: list[Tensor] = []

    def _take(self, maps: Tensor, labels: Tensor, classes: int) -> None:
        self._parts.append(maps)  # a copy already: a mask was applied to it

    def maps(self, labels: Tensor, memory: int) -> Maps:
        whole = torch.cat(self._parts)
        self._parts.clear()
        return Maps(self.slot.unit, labels, whole, None, memory, self._height())


class ScatterAccumulator(MapAccumulator):
    """Keeps sums and products in float64. The first batch's mean map is subtracted first, so that little cancels."""

    def __init__(self, tap: str, slot: Slot) -> None:
        super().__init__(tap, slot)
        self._scatter: Scatter | None = None
        self._shift = torch.zeros(())

    def _take(self, maps: Tensor, labels: Tensor, classes: int) -> None:
        x = maps.double().transpose(0, 1)  # [n, N, d]
        if self._scatter is None:
            n, _, d = x.shape
            self._shift = x.mean(1, keepdim=True)  # [n, 1, d]
            zeros = [torch.zeros(*shape, dtype=torch.float64) for shape in ((classes,), (classes, n, d), (n, d, d))]
            self._scatter = Scatter(*zeros)
        x = x - self._shift
        self._scatter.counts.add_(torch.bincount(labels, minlength=classes))
        self._scatter.sums.index_add_(0, labels, x.transpose(0, 1))
        self._scatter.products.baddbmm_(x.transpose(1, 2), x)

    def maps(self, labels: Tensor, memory: int) -> Maps:
        return Maps(self.slot.unit, labels, None, self._scatter, memory, self._height())


def _sides(x: Tensor, slot: Slot) -> tuple[int, int]:
    """Height and width of a map. A flattened map is taken to be square if its number of pixels is a square."""
    if x.ndim == 4 and slot.inputs.shape[1] == 1:
        return int(x.shape[2]), int(x.shape[3])
    pixels = slot.inputs.shape[1] * x.shape[2:].numel()
    side = math.isqrt(pixels)
    return (side, side) if side * side == pixels else (1, pixels)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MapRequest:
    """Which images, how much memory, and which form of the maps."""

    num_images: int | None = 2000  # the same number of each class; None: all
    memory: int = 2 * GIB  # bytes for maps and scatters, and the same again for matrices computed from them
    whole: bool = True  # False: scatters are enough, where they are smaller
    tap: Where = "reader"
    seed: int | None = None
    classes: bool = True  # False: all images count as one class, and batches may be images alone
    task: Task | None = None  # None: classification
    progress: Progress | None = field(default=None, repr=False)
    saturating: tuple[str, ...] = ()  # metrics that say nothing where there are fewer images than pixels


@dataclass(frozen=True, eq=False)
class MapsAt:
    """Maps of some of a unit's channels at one tap."""

    channels: Indices
    maps: Maps


@dataclass(frozen=True, eq=False)
class WantedMaps:
    """One slot of one tap, the number of pixels of its maps and the bytes of a pixel."""

    tap: str
    slot: Slot
    pixels: int
    pixel_bytes: int

    def streams(self, images: int, whole: bool) -> bool:
        """Whether its d x d scatter is kept instead of N maps."""
        return not whole and self.pixels <= images

    def bytes(self, images: int, classes: int, whole: bool) -> int:
        """Bytes for all of its channels."""
        if self.streams(images, whole):
            return 8 * len(self.slot.channels) * self.pixels * (self.pixels + classes)
        return self.pixel_bytes * len(self.slot.channels) * self.pixels * images


Found = Iterator[tuple[str, list[MapsAt]]]  # unit by unit, the maps at each of its taps


def collect_maps(graph: ChannelGraph, loader: Batches, request: MapRequest) -> tuple[int, Found]:
    """The number of images, and the maps unit by unit. A pass runs when its first unit is asked for.

    Each pass handles a group of units, whose maps are freed before the next pass. The memory and the number of passes
    are logged before the first one. If a single unit does not fit into the memory, the sample becomes smaller.
    """
    places = locate_taps(graph, request.tap)
    taps, wants = _wants(graph, places)
    sample = _fitting(loader, wants, request)
    images, classes = int(sample.quotas.sum()), len(sample.quotas)
    sizes = [want.bytes(images, classes, request.whole) for want in wants]
    groups = list(_grouped(wants, sizes, request.memory))
    kept = list(usable_classes(sample.quotas.tolist())) if request.classes else [0]
    _warn_of_few_images(wants, images, request.saturating)
    log.info("maps of %d images need %.2f GiB, in %d passes", images, sum(sizes) / GIB, len(groups))

    def found() -> Found:
        for group in groups:
            names = {want.tap for want in group}
            chosen = TapLocations(
                {name: taps[name] for name in places.readers if name in names},
                {call: taps[tap.name] for call, tap in places.activations.items() if tap.name in names},
                places.last_axis,
            )
            yield from _gathered(graph, sample, kept, chosen, group, request)

    return images, found()


def _gathered(
    graph: ChannelGraph,
    sample: Sample,
    kept: list[int],
    places: TapLocations,
    group: Sequence[WantedMaps],
    request: MapRequest,
) -> Found:
    """One pass, for one group of units."""
    number = torch.full((len(sample.quotas),), -1)  # [K] class -> its number among the usable classes
    number[kept] = torch.arange(len(kept))
    images = int(sample.quotas.sum())
    accumulators: dict[str, list[MapAccumulator]] = {}
    for want in group:
        kind = ScatterAccumulator if want.streams(images, request.whole) else WholeMapAccumulator
        accumulators.setdefault(want.tap, []).append(kind(want.tap, want.slot))
    seen: list[Tensor] = []
    rows = 0  # images of the batch

    def see(name: str, x: Tensor) -> None:
        nonlocal rows
        rows = len(x)
        for accumulator in accumulators[name]:
            accumulator.see(x)

    def after(batch: int, labels: Tensor, _: Any) -> None:
        numbers = number[labels] if request.classes else torch.zeros(rows, dtype=torch.int64)
        mine = numbers >= 0
        seen.append(numbers[mine])
        for accumulator in (k for parts in accumulators.values() for k in parts):
            accumulator.add(batch, mine, seen[-1], len(kept))

    with watched(graph, places, see):
        walk(
            graph,
            sample.batches(),
            after,
            labelled=request.classes,
            progress=request.progress,
            task=request.task,
        )
    labels = torch.cat(seen)
    units: dict[str, list[MapsAt]] = {}
    for accumulator in (k for parts in accumulators.values() for k in parts):
        units.setdefault(accumulator.slot.unit, []).append(
            MapsAt(accumulator.slot.channels, accumulator.maps(labels, request.memory))
        )
    yield from units.items()


def _wants(graph: ChannelGraph, places: TapLocations) -> tuple[Mapping[str, Tap], list[WantedMaps]]:
    """The taps, with shared ones merged, and the maps to keep. One forward pass of the example shows their sizes."""
    shapes: dict[str, tuple[int, int]] = {}  # pixels in all calls, and the bytes of one

    def see(name: str, x: Tensor) -> None:
        before, _ = shapes.get(name, (0, 0))
        shapes[name] = (before + x.shape[2:].numel(), x.element_size())

    args, kwargs = as_call(graph.example)
    with evaluating(graph.model), generators_kept(), torch.no_grad(), watched(graph, places, see) as sharing:
        graph.model(*args, **kwargs)
    taps = sharing.merged(places.taps)
    wants: list[WantedMaps] = []
    for name, tap in taps.items():
        pixels, size = shapes[name]
        wants += [WantedMaps(name, slot, slot.inputs.shape[1] * pixels, size) for slot in tap.slots]
    order = list(graph.units)
    return taps, sorted(wants, key=lambda want: order.index(want.slot.unit))


def _by_unit(wants: Sequence[WantedMaps], sizes: Sequence[int]) -> list[tuple[list[WantedMaps], int]]:
    """The wanted maps of each unit, and their bytes."""
    units: dict[str, tuple[list[WantedMaps], int]] = {}
    for want, size in zip(wants, sizes, strict=True):
        before = units.get(want.slot.unit, ([], 0))
        units[want.slot.unit] = ([*before[0], want], before[1] + size)
    return list(units.values())


def _fitting(loader: Batches, wants: Sequence[WantedMaps], request: MapRequest) -> Sample:
    """The requested sample, or the largest one for which the maps of every single unit fit into memory."""
    how: dict[str, Any] = {"balanced": True, "labelled": request.classes, "task": request.task}
    sample = Sample(loader, request.num_images, request.seed, **how)
    asked = images = int(sample.quotas.sum())
    classes = len(sample.quotas)

    def largest(images: int) -> int:
        sizes = [want.bytes(images, classes, request.whole) for want in wants]
        return max(size for _, size in _by_unit(wants, sizes))

    while images > 1 and largest(images) > request.memory:
        images = min(images - 1, int(images * max(0.5, request.memory / largest(images))))
    if images == asked:
        return sample
    least = 2 * int((sample.sizes > 1).sum()) if request.classes else 2
    if images < least:
        each = " per class" if request.classes else ""
        raise ScoreError(
            f"maps of two images{each} need more than the {request.memory / GIB:.2f} GiB allowed for one unit; "
            "raise memory_gib, or use a metric that needs no maps, such as gsd"
        )
    log.warning("maps of %d images do not fit into %.2f GiB; using %d images", asked, request.memory / GIB, images)
    return Sample(loader, images, request.seed, **how)


def _warn_of_few_images(wants: Sequence[WantedMaps], images: int, metrics: Sequence[str]) -> None:
    few = [want for want in wants if want.pixels >= images]
    if not few or not metrics:
        return
    most = max(few, key=lambda want: want.pixels)
    log.warning(
        "%s: %d images are too few for %d of %d units, whose maps have as many pixels or more (%s: %d). All of their "
        "channels get nearly the same score. Use clearly more than %d images (in Python num_map_images; "
        "--num-map-images of `prunus score` and `study effectiveness`; --num-images of `prunus show channels`), or "
        "a metric that needs no maps, such as gsd",
        *(", ".join(metrics), images, len({want.slot.unit for want in few}), len({want.slot.unit for want in wants})),
        *(most.slot.unit, most.pixels, most.pixels),
    )


def _grouped(wants: Sequence[WantedMaps], sizes: Sequence[int], memory: int) -> Iterator[list[WantedMaps]]:
    """Groups of whole units, each as large as fits."""
    group: list[WantedMaps] = []
    used = 0
    for unit, size in _by_unit(wants, sizes):
        if group and used + size > memory:
            yield group
            group, used = [], 0
        group, used = group + unit, used + size
    if group:
        yield group
