"""The images of a picture: which ones, and their pixels."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import DataError, ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Reader
from prunus.score.metrics import METRICS, check_metric_options, metric_option
from prunus.score.score import score_by
from prunus.score.scores import Scores, ScoreSettings
from prunus.score.taps import Slot, channels_first, gather
from prunus.tasks import Task, is_classification, task_of
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches, call, device_of, move, unpack
from prunus.util.options import check, names, option
from prunus.util.registry import unknown
from prunus.util.state import evaluating, generators_kept

BATCHES = 8  # batches that are searched for images of different classes


def spread_classes(known: int, count: int) -> list[int]:
    """Up to `count` of the classes 0 to known - 1, evenly spread."""
    if count < 1:
        raise DataError(f"the number of classes to show must be at least 1, got {count}")
    places = np.linspace(0, known - 1, min(count, known)).round()
    return sorted({int(place) for place in places})


def images_of(loader: Batches, classes: Sequence[int], each: int) -> tuple[Tensor, Tensor]:
    """The first `each` images of every class [M, C, H, W] and their labels [M], class after class.

    A class with fewer images gives all of them; a class without images raises DataError. Stops reading as soon as there
    are enough.
    """
    found: dict[int, list[Tensor]] = {label: [] for label in classes}
    for index, batch in enumerate(loader):
        images, labels = unpack(batch, index)
        if not isinstance(images, Tensor) or images.ndim != 4:
            raise DataError(f"pictures need batches of images [N, C, H, W]; batch {index} has none")
        for image, label in zip(images, labels.tolist(), strict=True):
            if label in found and len(found[label]) < each:
                found[label].append(image)
        if all(len(mine) >= each for mine in found.values()):
            break
    none = [label for label, mine in found.items() if not mine]
    if none:
        raise DataError(f"there is no image of class {none[0]} to show; use more images, or another part of the data")
    counts = torch.tensor([len(found[label]) for label in classes])
    images = torch.stack([image for label in classes for image in found[label]])
    return images, torch.tensor(classes).repeat_interleave(counts)


def some_images(loader: Batches, seed: int, count: int, task: Task | None = None) -> tuple[Tensor, list[int]] | None:
    """The first image of each of up to `count` classes in the first batches; None if the inputs are not images.

    Without one class per image, the first images, with their numbers in the place of classes.
    """
    first: dict[int, Tensor] = {}
    chosen = task_of(task)
    with generators_kept(seed):
        for index, batch in enumerate(islice(loader, BATCHES)):
            images, labels = unpack_for(chosen, batch, index, labelled=is_classification(chosen))
            if not isinstance(images, Tensor) or images.ndim != 4:
                return None
            numbers = labels.tolist() if is_classification(chosen) else range(len(first), len(first) + len(images))
            for image, label in zip(images, numbers, strict=True):
                first.setdefault(label, image)
            if len(first) >= count:
                break
    labels_shown = sorted(list(first)[:count])
    return (torch.stack([first[label] for label in labels_shown]), labels_shown) if first else None


@dataclass(frozen=True)
class Normalisation:
    """The mean and standard deviation of each colour that images were normalised with."""

    mean: Sequence[float]
    std: Sequence[float]


def as_pixels(images: Tensor, normalised: Normalisation | None = None) -> Any:
    """Images [N, C, H, W] as uint8 [N, H, W, 1 or 3].

    normalised: undone, so that images have their own colours. Without it each image is stretched from its darkest to
    its brightest value. If images have neither 1 nor 3 channels, the first one is shown.
    """
    images = images.detach().float().cpu()
    if normalised is not None:
        std, mean = (torch.tensor(values).view(1, -1, 1, 1) for values in (normalised.std, normalised.mean))
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


# Feature maps of chosen channels on a few images, for pictures.


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
    found: dict[str, dict[int, Tensor]] = {name: {} for name in wanted}  # unit -> channel -> [N, height, width]
    with evaluating(graph.model), generators_kept(), torch.no_grad(), _watched(graph, wanted, found):
        call(graph.model, move(images, device_of(graph.model)))
    return {name: _stacked([found[name][c] for c in channels]) for name, channels in wanted.items()}


@contextmanager
def _watched(
    graph: ChannelGraph, wanted: Mapping[str, Sequence[int]], found: dict[str, dict[int, Tensor]]
) -> Iterator[None]:
    """Hooks on the readers of the wanted units, called after the hooks that select channels, and removed at the end."""
    handles = []

    def look(unit: str, reader: Reader, layer: nn.Module, args: tuple[Any, ...]) -> None:
        fresh = [i for i, c in enumerate(reader.channels) if c in wanted[unit] and int(c) not in found[unit]]
        if not fresh:
            return
        slot = Slot(unit, reader.channels[fresh], reader.inputs[fresh], (reader,))
        maps = _as_maps(channels_first(args[0], layer), slot)
        found[unit] |= {int(c): maps[:, i] for i, c in enumerate(slot.channels)}

    try:
        for unit in wanted:
            for reader in graph.units[unit].readers:
                layer = graph.model.get_submodule(reader.module)
                handles.append(layer.register_forward_pre_hook(partial(look, unit, reader)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _as_maps(x: Tensor, slot: Slot) -> Tensor:
    """The slot's channels of x [N, F, ...] as [N, n, height, width]."""
    flat = gather(x, slot).detach().float().cpu()  # [N, n, pixels]
    pixels = flat.shape[2]
    if slot.inputs.shape[1] == 1 and x.ndim == 4:
        height = x.shape[2]
    else:
        side = math.isqrt(pixels)
        height = side if side * side == pixels else 1
    return flat.reshape(*flat.shape[:2], height, pixels // height).clone()


def _stacked(maps: Sequence[Tensor]) -> Tensor:
    """Maps as [N, channels, height, width]. Maps of other sizes, from other readers, are resized to the first one's."""
    size = maps[0].shape[1:]
    same = [m if m.shape[1:] == size else F.interpolate(m[:, None], size, mode="area")[:, 0] for m in maps]
    return torch.stack(same, 1)


# The unit that a figure shows, and the scores and silent channels of that unit.

SECOND = 1


def find_unit(graph: ChannelGraph, name: str | None = None) -> str:
    """The name of the unit that a user means by `name`: a unit, or a layer that writes or reads it.

    Without a name: the second private unit, because the paper shows the second layer of LeNet-5 and of the first block
    of ResNet-50.
    """
    if not graph.units:
        raise ScoreError("this network has no channels that can be removed; `prunus inspect` lists the reasons")
    if name is None:
        private = [unit for unit, found in graph.units.items() if found.kind == "private"] or list(graph.units)
        return private[min(SECOND, len(private) - 1)]
    if name in graph.units:
        return name
    for unit, found in graph.units.items():
        if found.kind == "private" and name in [writer.module for writer in found.writers]:
            return unit
    for unit, found in graph.units.items():
        if name in [reader.module for reader in found.readers]:
            return unit
    near = get_close_matches(name, [*graph.units, *graph.layers], n=3)
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
    settings = ScoreSettings(num_images, seed=seed)
    if num_images is not None:
        settings = replace(settings, num_map_images=num_images)
    return score_by(alone, loader, metrics, settings)


def silent_channels(graph: ChannelGraph, images: Tensor, unit: str) -> tuple[int, ...]:
    """Channels with one and the same value everywhere on all of these images. A picture of them would be empty."""
    maps = feature_maps(graph, images, {unit: range(graph.units[unit].width)})[unit]  # [N, width, h, w]
    return tuple(torch.nonzero(maps.amax((0, 2, 3)) == maps.amin((0, 2, 3)))[:, 0].tolist())


def not_silent(order: Iterable[int], silent: Sequence[int]) -> list[int]:
    """The channels of `order` that are not silent; all channels if every one is silent."""
    channels = [int(channel) for channel in order]
    return [channel for channel in channels if channel not in silent] or channels


# Settings of the figures of channels. The command line options of `prunus show` are made from them.

LAYER_HELP = "Unit or layer, as listed by `prunus inspect`; the second unit by default"


@dataclass(frozen=True)
class FigureSettings:
    """What both figures need: a unit, and images to score on."""

    layer: str | None = option(None, LAYER_HELP, group="Channels")
    num_images: int | None = option(2000, "Number of training images to score on", group="Channels", least=1)
    seed: int = option(0, "Seed of the sample to score on and of held-out images", group="Output", least=0)


@dataclass(frozen=True)
class SeparationSettings(FigureSettings):
    """Which two channels are compared, and on how many images."""

    metric: str = metric_option("gsd", "Metric that ranks the channels")
    weak: int | None = option(None, "Use this channel as the weak one", group="Channels", least=0)
    strong: int | None = option(None, "Use this channel as the strong one", group="Channels", least=0)
    each: int = option(4, "Number of images of each class that are shown with their maps", group="Images", least=1)
    points: int = option(
        100, "Number of images of each class for the projections, half of which are drawn", group="Images", least=2
    )

    def check(self) -> None:
        """Raise DataError for settings that make no picture."""
        check(self, DataError)
        if self.points < self.each:
            raise DataError(f"points must be at least each ({self.each}), got {self.points}")


@dataclass(frozen=True)
class ChannelsFigureSettings(FigureSettings):
    """Which metrics are compared, and on which images."""

    by: str = option("gsd", "Metric that finds the weakest and the strongest channel", group="Channels")
    metrics: tuple[str, ...] = option(
        ("l1", "bn_scale", "fpgm", "di", "gsd"),  # the columns of the paper's Fig. 3
        "Average over the strongest channels by each of these metrics; l1,bn_scale,fpgm,di,gsd by default",
        group="Channels",
        parse=names,
    )
    top: int = option(10, "Number of strongest channels in an average", group="Channels", least=1)
    skip: int = option(0, "Skip this number of images of each class", group="Images", least=0)

    def check(self) -> None:
        """Raise DataError for settings that make no picture."""
        check(self, DataError)
        for name in (self.by, *self.metrics):
            METRICS.check(name.partition(":")[0])
            check_metric_options(name)
