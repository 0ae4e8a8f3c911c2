"""What a picture of channels shows: its images, its unit, and the feature maps of the unit's channels."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import DataError, ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.scoring.score import score
from prunus.scoring.scores import Scores
from prunus.scoring.taps import Slot, channels_first, gather, hooked, reading_taps
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches, call, device_of, move
from prunus.util.registry import nearest, unknown
from prunus.util.state import evaluating, generators_kept

BATCHES = 8  # batches that are searched for images of different classes


def spread_classes(known: int, count: int) -> list[int]:
    """Up to `count` of the classes 0 to known - 1, evenly spread."""
    places = np.linspace(0, known - 1, min(count, known)).round()
    return sorted({int(place) for place in places})


def images_of(loader: Batches, classes: Sequence[int], each: int) -> tuple[Tensor, Tensor]:
    """The first `each` images of every class [M, C, H, W] and their labels [M], class after class.

    A class with fewer images gives all of them; a class without images raises DataError. Stops reading as soon as there
    are enough.
    """
    of_class: dict[int, list[Tensor]] = {label: [] for label in classes}
    for index, batch in enumerate(loader):
        images, labels = unpack_for(task_of(None), batch, index)
        if not isinstance(images, Tensor) or images.ndim != 4:
            raise DataError(f"pictures need batches of images [N, C, H, W]; batch {index} has none")
        for image, label in zip(images, labels.tolist(), strict=True):
            if label in of_class and len(of_class[label]) < each:
                of_class[label].append(image)
        if all(len(some) >= each for some in of_class.values()):
            break
    none = [label for label, some in of_class.items() if not some]
    if none:
        raise DataError(f"there is no image of class {none[0]} to show; use more images, or another part of the data")
    counts = torch.tensor([len(of_class[label]) for label in classes])
    images = torch.stack([image for label in classes for image in of_class[label]])
    return images, torch.tensor(classes).repeat_interleave(counts)


def some_images(loader: Batches, seed: int, count: int, task: Task | None = None) -> tuple[Tensor, list[int]] | None:
    """The first image of each of up to `count` classes in the first batches; None if the inputs are not images.

    Without one class per image, the first images, with their numbers in the place of classes.
    """
    first: dict[int, Tensor] = {}
    chosen = task_of(task)
    by_class = chosen.label_kind == "classes"
    with generators_kept(seed):
        for index, batch in enumerate(islice(loader, BATCHES)):
            images, labels = unpack_for(chosen, batch, index, labelled=by_class)
            if not isinstance(images, Tensor) or images.ndim != 4:
                return None
            numbers = labels.tolist() if by_class else range(len(first), len(first) + len(images))
            for image, label in zip(images, numbers, strict=True):
                first.setdefault(label, image)
            if len(first) >= count:
                break
    labels_shown = sorted(list(first)[:count])
    return (torch.stack([first[label] for label in labels_shown]), labels_shown) if first else None


Normalised = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each colour


def as_pixels(images: Tensor, normalised: Normalised | None = None) -> Any:
    """Images [N, C, H, W] as uint8 [N, H, W, 1 or 3].

    normalised: the mean and standard deviation of each colour, which are undone. Without them each image is stretched
    from its darkest to its brightest value. If images have neither 1 nor 3 channels, the first one is shown.
    """
    images = images.detach().float().cpu()
    if normalised is not None:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in normalised)
        images = images * std + mean
    images = images if images.shape[1] in (1, 3) else images[:, :1]
    if normalised is None:
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        images = (images - low) / (high - low).clamp(min=1e-12)
    pixels: Any = (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(pixels)


def shrunk(images: Tensor, side: int) -> Tensor:
    """Images [N, C, H, W] with no side longer than `side`; a pixel is the mean of the pixels that it covers."""
    height, width = images.shape[2:]
    longest = max(height, width)
    if longest <= side:
        return images.detach().float().cpu()
    size = (max(1, round(height * side / longest)), max(1, round(width * side / longest)))
    return F.interpolate(images.detach().float().cpu(), size, mode="area")


# -- feature maps


def feature_maps(graph: ChannelGraph, images: Any, wanted: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """unit -> maps [N, channels, height, width] of its wanted channels, in that order, float32 on the CPU.

    images: the model's input, in one forward pass. The maps are the tensors that metrics score: those that enter the
    unit's readers. If a flatten precedes a linear reader, the pixels are arranged as a square if possible. The model,
    its mode, its hooks and the random generators are left unchanged, also after an error.
    """
    for name, channels in wanted.items():
        if name not in graph.units:
            raise ScoreError(unknown("unit", name, list(graph.units)))
        wrong = [c for c in channels if not 0 <= c < graph.units[name].width]
        if wrong:
            raise ScoreError(f"unit {name} has channels 0 to {graph.units[name].width - 1}, but not {wrong[0]}")
    seen: dict[str, dict[int, Tensor]] = {name: {} for name in wanted}  # unit -> channel -> [N, height, width]

    def look(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = channels_first(args[0], layer)
        for slot in taps[name]:
            unseen = set(wanted.get(slot.unit, ())) - seen.get(slot.unit, {}).keys()
            fresh = [i for i, c in enumerate(slot.channels) if c in unseen]
            if not fresh:
                continue
            some = Slot(slot.unit, slot.channels[fresh], slot.inputs[fresh], slot.readers)
            flat = gather(x, some).detach().float().cpu()  # [N, channels, pixels]
            side = math.isqrt(flat.shape[2])
            height = side if side * side == flat.shape[2] else 1
            height = x.shape[2] if slot.inputs.shape[1] == 1 and x.ndim == 4 else height
            maps = flat.reshape(*flat.shape[:2], height, flat.shape[2] // height).clone()
            seen[slot.unit] |= {int(c): maps[:, i] for i, c in enumerate(some.channels)}

    taps = reading_taps(graph)
    with hooked(graph.model, taps, look), evaluating(graph.model), generators_kept(), torch.no_grad():
        call(graph.model, move(images, device_of(graph.model)))
    stacked = {}
    for name, channels in wanted.items():
        maps = [seen[name][c] for c in channels]
        size = maps[0].shape[1:]  # maps of other sizes, from other readers, are resized to the first one's
        same = [m if m.shape[1:] == size else F.interpolate(m[:, None], size, mode="area")[:, 0] for m in maps]
        stacked[name] = torch.stack(same, 1)
    return stacked


# -- the unit that a figure shows, its scores and its silent channels


def find_unit(graph: ChannelGraph, name: str | None = None) -> str:
    """The name of the unit that a user means by `name`: a unit, or a layer that writes or reads it.

    Without a name: the second private unit, because the paper shows the second layer of LeNet-5 and of the first block
    of ResNet-50.
    """
    if not graph.units:
        raise ScoreError("this network has no channels that can be removed; `prunus inspect` lists the reasons")
    private = [unit for unit, each in graph.units.items() if each.kind == "private"]
    if name is None:
        return (private or list(graph.units))[:2][-1]
    if name in graph.units:
        return name
    written = [u for u in private if name in {writer.module for writer in graph.units[u].writers}]
    read = [u for u, each in graph.units.items() if name in {reader.module for reader in each.readers}]
    if written or read:
        return [*written, *read][0]
    near = nearest(name, [*graph.units, *graph.layers])
    guess = f": did you mean {' or '.join(near)}?" if near else ";"
    raise ScoreError(f"there is no unit or layer called {name!r}{guess} `prunus inspect` lists them")


def scores_of_unit(
    graph: ChannelGraph, unit: str, loader: Batches, metrics: Sequence[str], num_images: int | None, seed: int
) -> dict[str, Scores]:
    """Scores of one unit by several metrics. Other units are not scored.

    num_images: also of metrics that need whole feature maps; None: all, and the usual number for those metrics.
    """
    alone = copy.copy(graph)
    alone.units = {unit: graph.units[unit]}
    limit: Any = {} if num_images is None else {"num_map_images": num_images}
    return score(alone, loader, list(metrics), num_images, seed=seed, **limit)


def without_silent(order: Iterable[int], maps: Tensor) -> tuple[list[int], tuple[int, ...]]:
    """The channels of `order` that a picture can show (all if every one is silent), and the silent ones.

    A channel is silent if its maps [N, width, h, w] have one and the same value everywhere on all images.
    """
    silent = tuple(torch.nonzero(maps.amax((0, 2, 3)) == maps.amin((0, 2, 3)))[:, 0].tolist())
    channels = [int(channel) for channel in order]
    return [channel for channel in channels if channel not in silent] or channels, silent
