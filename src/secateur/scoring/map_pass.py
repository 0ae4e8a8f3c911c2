"""Whole feature maps of a sample of images, for DI and MMD: as many units in one pass as fit into the memory given."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from secateur.base.batches import Batches
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.channels.traced import as_call
from secateur.channels.units import Indices
from secateur.errors import ScoreError
from secateur.scoring.data_pass import walk
from secateur.scoring.evidence import Maps
from secateur.scoring.map_accumulators import Keeper, ScatterKeeper, WholeKeeper
from secateur.scoring.sampling import Sample
from secateur.scoring.settings import GIB, Where
from secateur.scoring.statistics import usable_classes
from secateur.scoring.tap_hooks import Slot, Tap, gather
from secateur.scoring.tap_location import Places, find_places, watched

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MapRequest:
    """What is wanted of the maps."""

    num_images: int | None = 2000  # as many of each class; None: all
    memory: int = 2 * GIB  # bytes for maps and scatters, and once more for the matrices made of them
    whole: bool = True  # MMD needs whole maps; DI alone is content with scatters where they are smaller
    tap: Where = "reader"
    seed: int | None = None
    progress: Progress | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class MapsAt:
    """Maps of some of a unit's channels at one tap."""

    channels: Indices
    maps: Maps


@dataclass(frozen=True, eq=False)
class Want:
    """One slot of one tap, the pixels of its maps and the bytes of one of them."""

    tap: str
    slot: Slot
    pixels: int
    pixel_bytes: int

    def streams(self, images: int, whole: bool) -> bool:
        """Whether its d x d scatter is gathered instead of N maps."""
        return not whole and self.pixels <= images

    def bytes(self, images: int, classes: int, whole: bool) -> int:
        """Memory for all of its channels."""
        if self.streams(images, whole):
            return 8 * len(self.slot.channels) * self.pixels * (self.pixels + classes)
        return self.pixel_bytes * len(self.slot.channels) * self.pixels * images


Found = Iterator[tuple[str, list[MapsAt]]]  # unit after unit, what was gathered at each of its taps


def collect_maps(graph: ChannelGraph, loader: Batches, request: MapRequest) -> tuple[int, Found]:
    """How many images are taken, and the maps of one unit after the other, read as they are asked for.

    What a group of units needs is freed before the next group is read.
    The log says how much is needed, and in how many passes, before the first begins. Where a unit alone would not fit
    into `memory`, the sample is made smaller.
    """
    places = find_places(graph, request.tap)
    taps, wants = _wants(graph, places)
    sample = _fitting(loader, wants, request)
    images, classes = int(sample.quotas.sum()), len(sample.quotas)
    sizes = [want.bytes(images, classes, request.whole) for want in wants]
    groups = list(_grouped(wants, sizes, request.memory))
    kept = list(usable_classes(sample.quotas.tolist()))
    log.info("maps of %d images need %.2f GiB, in %d passes", images, sum(sizes) / GIB, len(groups))

    def found() -> Found:
        for group in groups:
            names = {want.tap for want in group}
            chosen = Places(
                {name: taps[name] for name in places.readers if name in names},
                {call: taps[tap.name] for call, tap in places.activations.items() if tap.name in names},
                places.last_axis,
            )
            yield from _gathered(graph, sample, kept, chosen, group, request)

    return images, found()


def _gathered(
    graph: ChannelGraph, sample: Sample, kept: list[int], places: Places, group: Sequence[Want], request: MapRequest
) -> Found:
    """One pass, for the wants of one group."""
    number = torch.full((len(sample.quotas),), -1)  # [K] class -> its number among those kept
    number[kept] = torch.arange(len(kept))
    images = int(sample.quotas.sum())
    keepers: dict[str, list[Keeper]] = {}
    for want in group:
        kind = ScatterKeeper if want.streams(images, request.whole) else WholeKeeper
        keepers.setdefault(want.tap, []).append(kind(want.tap, want.slot))
    seen: list[Tensor] = []

    def see(name: str, x: Tensor) -> None:
        for keeper in keepers[name]:
            keeper.pending = gather(x, keeper.slot)  # [N, n, d]

    def after(batch: int, labels: Tensor, logits: Tensor) -> None:
        mine = number[labels] >= 0
        seen.append(number[labels][mine])
        for keeper in (k for parts in keepers.values() for k in parts):
            keeper.add(batch, mine, seen[-1], len(kept))

    with watched(graph, places, see):
        walk(graph, sample.batches(), after, progress=request.progress)
    labels = torch.cat(seen)
    units: dict[str, list[MapsAt]] = {}
    for keeper in (k for parts in keepers.values() for k in parts):
        units.setdefault(keeper.slot.unit, []).append(MapsAt(keeper.slot.channels, keeper.maps(labels, request.memory)))
    yield from units.items()


def _wants(graph: ChannelGraph, places: Places) -> tuple[Mapping[str, Tap], list[Want]]:
    """The taps, shared ones merged, and what there is to gather: one forward of the example shows the sizes."""
    shapes: dict[str, tuple[torch.Size, int]] = {}

    def see(name: str, x: Tensor) -> None:
        shapes[name] = (x.shape, x.element_size())

    args, kwargs = as_call(graph.example)
    with evaluating(graph.model), generators_kept(), torch.no_grad(), watched(graph, places, see) as sharing:
        graph.model(*args, **kwargs)
    taps = sharing.merged(places.taps)
    wants: list[Want] = []
    for name, tap in taps.items():
        shape, size = shapes[name]
        wants += [Want(name, slot, slot.inputs.shape[1] * shape[2:].numel(), size) for slot in tap.slots]
    order = list(graph.units)
    return taps, sorted(wants, key=lambda want: order.index(want.slot.unit))


def _by_unit(wants: Sequence[Want], sizes: Sequence[int]) -> list[tuple[list[Want], int]]:
    """Each unit's wants, which stand together, and the bytes that they take."""
    units: dict[str, tuple[list[Want], int]] = {}
    for want, size in zip(wants, sizes, strict=True):
        before = units.get(want.slot.unit, ([], 0))
        units[want.slot.unit] = ([*before[0], want], before[1] + size)
    return list(units.values())


def _fitting(loader: Batches, wants: Sequence[Want], request: MapRequest) -> Sample:
    """The sample that was asked for, or the largest one whose maps of any one unit fit into the memory."""
    sample = Sample(loader, request.num_images, request.seed, balanced=True)
    asked = images = int(sample.quotas.sum())
    classes = len(sample.quotas)

    def largest(images: int) -> int:
        sizes = [want.bytes(images, classes, request.whole) for want in wants]
        return max(size for _, size in _by_unit(wants, sizes))

    while images > 1 and largest(images) > request.memory:
        images = min(images - 1, int(images * max(0.5, request.memory / largest(images))))
    if images == asked:
        return sample
    if images < 2 * int((sample.sizes > 1).sum()):
        raise ScoreError(
            f"maps of two images a class need more than the {request.memory / GIB:.2f} GiB allowed for one unit; "
            "raise memory_gib, or score by a moment metric such as gsd, which needs no maps"
        )
    log.warning("maps of %d images do not fit into %.2f GiB: taking %d", asked, request.memory / GIB, images)
    return Sample(loader, images, request.seed, balanced=True)


def _grouped(wants: Sequence[Want], sizes: Sequence[int], memory: int) -> Iterator[list[Want]]:
    """Whole units together, as many as fit."""
    group: list[Want] = []
    used = 0
    for unit, size in _by_unit(wants, sizes):
        if group and used + size > memory:
            yield group
            group, used = [], 0
        group, used = group + unit, used + size
    if group:
        yield group
