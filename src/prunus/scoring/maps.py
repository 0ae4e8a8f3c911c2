"""Whole feature maps of a sample of images, for the metrics that need them: as many units in a pass as memory holds."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import as_call
from prunus.graph.units import Indices
from prunus.scoring.collect import usable_classes
from prunus.scoring.evidence import Maps
from prunus.scoring.metrics import GIB, Where
from prunus.scoring.passes import Sample, walk
from prunus.scoring.taps import Slot, TapLocations, activation_name, gather, locate_taps, merged, watched
from prunus.tasks import Task
from prunus.util.batches import Batches
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

logger = logging.getLogger(__name__)

UnitMaps = Iterator[tuple[str, list[tuple[Indices, Maps]]]]  # unit by unit, the channels and their maps at each tap


def collect_maps(
    graph: ChannelGraph,
    loader: Batches,
    num_images: int | None,
    memory: int,
    *,
    tap: Where = "reader",
    seed: int | None = None,
    classes: bool = True,
    task: Task | None = None,
    saturating: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[int, UnitMaps]:
    """The number of images, and the maps unit by unit. A pass runs when its first unit is asked for.

    Each pass handles a group of units, whose maps are freed before the next pass. The memory and the number of passes
    are logged before the first one. If a single unit does not fit into the memory, the sample becomes smaller.

    Args:
        num_images: The same number of each class; None: all.
        memory: Bytes for maps, and the same again for matrices computed from them.
        classes: False: all images count as one class, and batches may be images alone.
        saturating: Metrics that say nothing where there are fewer images than pixels.
    """
    places = locate_taps(graph, tap)
    units = _wanted(graph, places)
    each = {name: sum(part.image_bytes for part in parts) for name, parts in units.items()}  # bytes of one image
    how: dict[str, Any] = {"balanced": True, "labelled": classes, "task": task}
    sample = Sample(loader, num_images, seed, **how)
    images = int(sample.quotas.sum())
    fitting = memory // max(each.values())
    if fitting < images:
        if fitting < (2 * int((sample.sizes > 1).sum()) if classes else 2):
            raise ScoreError(
                f"maps of two images{' per class' if classes else ''} need more than the {memory / GIB:.2f} GiB "
                "allowed for one unit; raise memory, or use a metric that needs no maps, such as gsd"
            )
        logger.warning("maps of %d images do not fit into %.2f GiB; using %d images", images, memory / GIB, fitting)
        images, sample = fitting, Sample(loader, fitting, seed, **how)
    groups: list[list[str]] = [[]]  # of units, each as large as fits
    for name in units:
        if groups[-1] and images * (sum(each[one] for one in groups[-1]) + each[name]) > memory:
            groups.append([])
        groups[-1].append(name)
    kept = list(usable_classes(sample.quotas.tolist())) if classes else [0]
    pixels = {name: max(part.pixels for part in parts) for name, parts in units.items()}
    few = [name for name in units if pixels[name] >= images]
    if few and saturating:
        most = max(few, key=pixels.__getitem__)
        logger.warning(
            "%s: %d images are too few for %d of %d units, whose maps have as many pixels or more (%s: %d). All of "
            "their channels get nearly the same score. Use clearly more than %d images (num_map_images, "
            "--num-map-images), or a metric that needs no maps, such as gsd",
            *(", ".join(saturating), images, len(few), len(units), most, pixels[most], pixels[most]),
        )
    logger.info("maps of %d images need %.2f GiB, in %d passes", images, images * sum(each.values()) / GIB, len(groups))
    number = torch.full((len(sample.quotas),), -1)  # [K] class -> its number among the usable classes
    number[kept] = torch.arange(len(kept))

    def one_pass(parts: list[_SlotMaps]) -> Tensor:
        """Keep the maps of these slots. The labels [N] of their images, numbered through the usable classes."""
        names, rows = {part.tap for part in parts}, 0
        seen: list[Tensor] = []
        some = replace(
            places,
            readers={name: slots for name, slots in places.readers.items() if name in names},
            activations={call: each for call, each in places.activations.items() if activation_name(call) in names},
        )

        def see(name: str, x: Tensor) -> None:
            nonlocal rows
            rows = len(x)
            for part in parts:
                if part.tap == name:
                    part.see(x)

        def after(batch: int, labels: Any, _: Any) -> None:
            numbers = number[labels] if classes else torch.zeros(rows, dtype=torch.int64)
            seen.append(numbers[numbers >= 0])
            for part in parts:
                part.add(batch, numbers >= 0)

        with watched(graph, some, see):
            walk(graph, sample.batches(), after, labelled=classes, progress=progress, task=task)
        return torch.cat(seen)

    def passes() -> UnitMaps:
        for group in groups:
            labels = one_pass([part for name in group for part in units[name]])
            for name in group:
                yield name, [(part.slot.channels, part.maps(labels, memory)) for part in units[name]]

    return images, passes()


class _SlotMaps:
    """The maps of one slot of one tap. The tap shows a batch's maps to `see`; `add` keeps them when the batch is done.

    pixels: of a channel's map, in all calls of the layer. pixel_bytes: of one of them.
    """

    def __init__(self, tap: str, slot: Slot, pixels: int, pixel_bytes: int) -> None:
        self.tap, self.slot, self.pixels = tap, slot, pixels
        self.image_bytes = pixel_bytes * len(slot.channels) * pixels
        self._pending: list[Tensor] = []  # [N, n, d] of each call of the layer
        self._sides: list[tuple[int, int]] = []  # height and width of each
        self._parts: list[Tensor] = []

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

    def add(self, batch: int, mine: Tensor) -> None:
        """Keep the images `mine` (a mask) of the batch."""
        calls, self._pending = self._pending, []
        if not calls:
            raise ScoreError(f"batch {batch} does not run through {self.tap}, unlike the example")
        maps = torch.cat(calls, 2)
        maps = maps[mine.to(maps.device)].cpu()  # a copy, because a mask is applied
        if not bool(torch.isfinite(maps).all()):
            raise ScoreError(
                f"batch {batch}: activations of unit {self.slot.unit} that enter {self.tap} are NaN or infinite; "
                "check the images and the weights"
            )
        self._parts.append(maps)

    def maps(self, labels: Tensor, memory: int) -> Maps:
        """All maps that were kept, which are forgotten; `labels` are those of all batches, concatenated."""
        # The maps of several calls of a layer are stacked if they are equally wide.
        equal = len({width for _, width in self._sides}) == 1
        height = sum(height for height, _ in self._sides) if equal else 1
        whole = torch.cat(self._parts)
        self._parts.clear()
        return Maps(self.slot.unit, labels, whole, memory, height)


def _wanted(graph: ChannelGraph, places: TapLocations) -> dict[str, list[_SlotMaps]]:
    """The maps to keep of each unit. One forward pass of the example shows their sizes, and which taps are the same."""
    shapes: dict[str, tuple[int, int]] = {}  # pixels in all calls, and the bytes of one

    def see(name: str, x: Tensor) -> None:
        before, _ = shapes.get(name, (0, 0))
        shapes[name] = (before + x.shape[2:].numel(), x.element_size())

    args, kwargs = as_call(graph.example)
    with evaluating(graph.model), generators_kept(), torch.no_grad(), watched(graph, places, see) as owners:
        graph.model(*args, **kwargs)
    units: dict[str, list[_SlotMaps]] = {name: [] for name in graph.units}
    for name, slots in merged(places.taps, owners).items():
        pixels, size = shapes[name]
        for slot in slots:
            units[slot.unit].append(_SlotMaps(name, slot, slot.inputs.shape[1] * pixels, size))
    return {name: parts for name, parts in units.items() if parts}
