"""Whole feature maps of a sample of images, for the metrics that need them: as many units in a pass as memory holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import as_call
from prunus.graph.units import Indices
from prunus.scoring.collect import usable_classes
from prunus.scoring.evidence import Maps, Scatter
from prunus.scoring.passes import Sample, walk
from prunus.scoring.settings import GIB, Where
from prunus.scoring.taps import Slot, Tap, TapLocations, gather, locate_taps, merged, watched
from prunus.tasks import Task
from prunus.util.batches import Batches
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

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


UnitMaps = Iterator[tuple[str, list[MapsAt]]]  # unit by unit, the maps at each of its taps


def collect_maps(graph: ChannelGraph, loader: Batches, request: MapRequest) -> tuple[int, UnitMaps]:
    """The number of images, and the maps unit by unit. A pass runs when its first unit is asked for.

    Each pass handles a group of units, whose maps are freed before the next pass. The memory and the number of passes
    are logged before the first one. If a single unit does not fit into the memory, the sample becomes smaller.
    """
    places = locate_taps(graph, request.tap)
    taps, units = _wanted(graph, places, request.whole)
    sample = _fitting(loader, list(units.values()), request)
    images, classes = int(sample.quotas.sum()), len(sample.quotas)
    sizes = {name: sum(each.bytes(images, classes) for each in parts) for name, parts in units.items()}
    groups: list[list[str]] = [[]]  # of units, each as large as fits
    used = 0
    for name, size in sizes.items():
        if groups[-1] and used + size > request.memory:
            groups.append([])
            used = 0
        groups[-1].append(name)
        used += size
    kept = list(usable_classes(sample.quotas.tolist())) if request.classes else [0]
    pixels = {name: max(part.pixels for part in parts) for name, parts in units.items()}
    few = [name for name in units if pixels[name] >= images]
    if few and request.saturating:
        most = max(few, key=pixels.__getitem__)
        log.warning(
            "%s: %d images are too few for %d of %d units, whose maps have as many pixels or more (%s: %d). All of "
            "their channels get nearly the same score. Use clearly more than %d images (num_map_images, "
            "--num-map-images), or a metric that needs no maps, such as gsd",
            *(", ".join(request.saturating), images, len(few), len(units), most, pixels[most], pixels[most]),
        )
    log.info("maps of %d images need %.2f GiB, in %d passes", images, sum(sizes.values()) / GIB, len(groups))

    def passes() -> UnitMaps:
        for group in groups:
            parts = [part for name in group for part in units[name]]
            names = {part.tap for part in parts}
            chosen = TapLocations(
                {name: taps[name] for name in places.readers if name in names},
                {call: taps[tap.name] for call, tap in places.activations.items() if tap.name in names},
                places.last_axis,
            )
            labels = _gather(graph, sample, kept, chosen, parts, request)
            for name in group:
                yield name, [MapsAt(part.slot.channels, part.maps(labels, request.memory)) for part in units[name]]

    return images, passes()


class _SlotMaps:
    """The maps of one slot of one tap: N whole maps, or their d x d scatter where that is enough and smaller.

    A tap shows a batch's maps to `see`; `add` keeps them when the batch is done.
    """

    def __init__(self, tap: str, slot: Slot, pixels: int, pixel_bytes: int, whole: bool) -> None:
        self.tap, self.slot, self.pixels = tap, slot, pixels
        self._pixel_bytes, self._whole = pixel_bytes, whole
        self._pending: list[Tensor] = []  # [N, n, d] of each call of the layer
        self._sides: list[tuple[int, int]] = []  # height and width of each
        self._parts: list[Tensor] = []
        self._scatter: Scatter | None = None
        self._shift = torch.zeros(())

    def streams(self, images: int) -> bool:
        """Whether a scatter is kept instead of whole maps."""
        return not self._whole and self.pixels <= images

    def bytes(self, images: int, classes: int) -> int:
        """Bytes for all of its channels."""
        if self.streams(images):
            return 8 * len(self.slot.channels) * self.pixels * (self.pixels + classes)
        return self._pixel_bytes * len(self.slot.channels) * self.pixels * images

    def see(self, x: Tensor) -> None:
        """The tensor that enters the layer in one of its calls."""
        if x.ndim == 4 and self.slot.inputs.shape[1] == 1:
            sides = int(x.shape[2]), int(x.shape[3])
        else:  # a flattened map is taken to be square if its number of pixels is a square
            pixels = self.slot.inputs.shape[1] * x.shape[2:].numel()
            side = math.isqrt(pixels)
            sides = (side, side) if side * side == pixels else (1, pixels)
        self._sides = [*self._sides[: len(self._pending)], sides]
        self._pending.append(gather(x, self.slot))

    def add(self, batch: int, mine: Tensor, labels: Tensor, classes: int, images: int) -> None:
        """Keep the images `mine` (a mask) of the batch, which have these labels, of `images` in all batches."""
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
        if not self.streams(images):
            self._parts.append(maps)  # a copy already: a mask was applied to it
            return
        x = maps.double().transpose(0, 1)  # [n, N, d]
        if self._scatter is None:
            n, _, d = x.shape
            self._shift = x.mean(1, keepdim=True)  # [n, 1, d]; subtracted from all maps, so that little cancels
            zeros = [torch.zeros(*shape, dtype=torch.float64) for shape in ((classes,), (classes, n, d), (n, d, d))]
            self._scatter = Scatter(*zeros)
        x = x - self._shift
        self._scatter.counts.add_(torch.bincount(labels, minlength=classes))
        self._scatter.sums.index_add_(0, labels, x.transpose(0, 1))
        self._scatter.products.baddbmm_(x.transpose(1, 2), x)

    def maps(self, labels: Tensor, memory: int) -> Maps:
        """All maps that were kept, which are forgotten; `labels` are those of all batches, concatenated."""
        # The maps of several calls of a layer are stacked if they are equally wide.
        equal = len({width for _, width in self._sides}) == 1
        height = sum(height for height, _ in self._sides) if equal else 1
        whole = torch.cat(self._parts) if self._parts else None
        scatter, self._scatter = self._scatter, None
        self._parts.clear()
        return Maps(self.slot.unit, labels, whole, scatter, memory, height)


def _wanted(
    graph: ChannelGraph, places: TapLocations, whole: bool
) -> tuple[dict[str, Tap], dict[str, list[_SlotMaps]]]:
    """The taps, with shared ones merged, and the maps to keep of each unit.

    One forward pass of the example shows the sizes of the maps.
    """
    shapes: dict[str, tuple[int, int]] = {}  # pixels in all calls, and the bytes of one

    def see(name: str, x: Tensor) -> None:
        before, _ = shapes.get(name, (0, 0))
        shapes[name] = (before + x.shape[2:].numel(), x.element_size())

    args, kwargs = as_call(graph.example)
    with evaluating(graph.model), generators_kept(), torch.no_grad(), watched(graph, places, see) as owners:
        graph.model(*args, **kwargs)
    taps = merged(places.taps, owners)
    units: dict[str, list[_SlotMaps]] = {name: [] for name in graph.units}
    for name, tap in taps.items():
        pixels, size = shapes[name]
        for slot in tap.slots:
            units[slot.unit].append(_SlotMaps(name, slot, slot.inputs.shape[1] * pixels, size, whole))
    return taps, {name: parts for name, parts in units.items() if parts}


def _fitting(loader: Batches, units: Sequence[Sequence[_SlotMaps]], request: MapRequest) -> Sample:
    """The requested sample, or the largest one for which the maps of every single unit fit into memory."""
    how: dict[str, Any] = {"balanced": True, "labelled": request.classes, "task": request.task}
    sample = Sample(loader, request.num_images, request.seed, **how)
    asked = images = int(sample.quotas.sum())

    def largest(images: int) -> int:
        return max(sum(part.bytes(images, len(sample.quotas)) for part in parts) for parts in units)

    while images > 1 and largest(images) > request.memory:
        images = min(images - 1, int(images * max(0.5, request.memory / largest(images))))
    if images == asked:
        return sample
    least = 2 * int((sample.sizes > 1).sum()) if request.classes else 2
    if images < least:
        each = " per class" if request.classes else ""
        raise ScoreError(
            f"maps of two images{each} need more than the {request.memory / GIB:.2f} GiB allowed for one unit; "
            "raise memory, or use a metric that needs no maps, such as gsd"
        )
    log.warning("maps of %d images do not fit into %.2f GiB; using %d images", asked, request.memory / GIB, images)
    return Sample(loader, images, request.seed, **how)


def _gather(
    graph: ChannelGraph,
    sample: Sample,
    kept: list[int],
    places: TapLocations,
    parts: Sequence[_SlotMaps],
    request: MapRequest,
) -> Tensor:
    """One pass, for one group of units. The labels [N], numbered through the classes that are kept."""
    number = torch.full((len(sample.quotas),), -1)  # [K] class -> its number among the usable classes
    number[kept] = torch.arange(len(kept))
    labels_seen: list[Tensor] = []
    rows = 0  # images of the batch

    def see(name: str, x: Tensor) -> None:
        nonlocal rows
        rows = len(x)
        for part in parts:
            if part.tap == name:
                part.see(x)

    def after(batch: int, labels: Tensor, _: Any) -> None:
        numbers = number[labels] if request.classes else torch.zeros(rows, dtype=torch.int64)
        mine = numbers >= 0
        labels_seen.append(numbers[mine])
        for part in parts:
            part.add(batch, mine, labels_seen[-1], len(kept), int(sample.quotas.sum()))

    with watched(graph, places, see):
        how: dict[str, Any] = {"labelled": request.classes, "progress": request.progress, "task": request.task}
        walk(graph, sample.batches(), after, **how)
    return torch.cat(labels_seen)
