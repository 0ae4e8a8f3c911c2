"""A few channels on a few held-out images, for the report: kept while a run has network and images at hand.

round-01/pictures.safetensors holds the images and the maps of the weakest channels (removed in that round) and the
strongest ones as bytes, and what they are as JSON in its header. Nothing else of a run depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor
from torch.nn import functional as F

from secateur.base.batches import Batches, unpack
from secateur.base.preserve_state import generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.errors import FileError
from secateur.pictures.feature_maps import as_pixels, feature_maps
from secateur.scoring.scores import Scores

PICTURES = "pictures.safetensors"
FORMAT, VERSION = "secateur-pictures", 1
UNITS, IMAGES, EACH = 6, 4, 2  # units shown, images, weakest and strongest channels of a unit
BATCHES = 8  # that are looked through for images of different classes
IMAGE_SIDE, MAP_SIDE = 48, 32  # pixels; larger ones are shrunk, so that the file stays below 200 KB

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Shown:
    """One channel of a unit."""

    channel: int  # its number in the original network
    removed: bool
    score: float
    means: tuple[float, ...]  # mean response to each image


@dataclass(frozen=True, eq=False)
class UnitPictures:
    """Channels of a unit from the weakest to the strongest; a byte of a map counts from `low` (0) to `high` (255)."""

    unit: str
    low: float
    high: float
    shown: tuple[Shown, ...]
    maps: Bytes  # [channels, N, height, width]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images, what they show, and units."""

    images: Bytes  # [N, height, width, 1 or 3]
    labels: tuple[str, ...]
    units: tuple[UnitPictures, ...]


def some_images(loader: Batches, seed: int, count: int = IMAGES) -> tuple[Tensor, list[int]] | None:
    """The first image of each of up to `count` classes among the first batches; None where inputs are no images."""
    first: dict[int, Tensor] = {}
    with generators_kept(seed):
        for index, batch in enumerate(islice(loader, BATCHES)):
            images, labels = unpack(batch, index)
            if not isinstance(images, Tensor) or images.ndim != 4:
                return None
            for image, label in zip(images, labels.tolist(), strict=True):
                first.setdefault(label, image)
            if len(first) >= count:
                break
    labels_shown = sorted(list(first)[:count])
    return (torch.stack([first[label] for label in labels_shown]), labels_shown) if first else None


def take_pictures(
    graph: ChannelGraph,
    scores: Scores,
    plan: Plan,
    images: Tensor,
    labels: Sequence[int],
    names: Sequence[str] | None = None,
) -> Pictures:
    """Maps of the weakest removed and the strongest kept channels of units that lose some, spread over the network."""
    chosen = {name: _weak_and_strong(scores, plan, name) for name, lost in plan.removed().items() if lost}
    maps = feature_maps(graph, images, chosen)  # unit -> [N, channels, height, width]
    seen = [name for name in chosen if maps[name].shape[2:].numel() > 1]
    spread = [seen[i] for i in np.unique(np.linspace(0, len(seen) - 1, min(UNITS, len(seen))).round().astype(int))]
    return Pictures(
        images=as_pixels(_shrunk(images, IMAGE_SIDE)),
        labels=tuple(str(label) if names is None else names[label] for label in labels),
        units=tuple(_unit(name, chosen[name], maps[name], scores, plan) for name in spread),
    )


def _weak_and_strong(scores: Scores, plan: Plan, unit: str) -> list[int]:
    kept = set(plan.keep[unit])
    order = scores.order(unit).tolist()
    return [c for c in order if c not in kept][:EACH] + [c for c in order if c in kept][-EACH:]


def _unit(name: str, channels: Sequence[int], maps: Tensor, scores: Scores, plan: Plan) -> UnitPictures:
    kept = set(plan.keep[name])
    shown = tuple(
        Shown(c, c not in kept, float(scores.values[name][c]), tuple(maps[:, i].mean((1, 2)).tolist()))
        for i, c in enumerate(channels)
    )
    small = _shrunk(maps, MAP_SIDE)
    # One scale for the unit's channels: stretched one by one, a channel that says nothing would look like the others.
    low, high = float(small.min()), float(small.max())
    levels = ((small - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8)
    return UnitPictures(name, low, high, shown, np.ascontiguousarray(levels.transpose(0, 1).numpy()))


def _shrunk(images: Tensor, side: int) -> Tensor:
    """[N, C, H, W] with no side longer than `side`: each new pixel is the mean of those it covers."""
    height, width = images.shape[2:]
    longest = max(height, width)
    if longest <= side:
        return images.detach().float().cpu()
    size = (max(1, round(height * side / longest)), max(1, round(width * side / longest)))
    return F.interpolate(images.detach().float().cpu(), size, mode="area")


# -- the file


def to_bytes(found: Pictures) -> bytes:
    """The content of the file."""
    units = [
        {"unit": unit.unit, "low": unit.low, "high": unit.high, "shown": [asdict(each) for each in unit.shown]}
        for unit in found.units
    ]
    about = {"format": FORMAT, "version": VERSION, "labels": found.labels, "units": units}
    tensors = {"images": found.images, **{f"maps/{i}": unit.maps for i, unit in enumerate(found.units)}}
    return bytes(save(tensors, {"about": json.dumps(about)}))


def load_pictures(path: Path) -> Pictures | None:
    """Read back what a run kept; None where there is no such file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no dict)
        if about["format"] != FORMAT or about["version"] != VERSION:
            raise ValueError(f'"format": "{FORMAT}" expected')
        return _pictures(about, tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} cannot be read as pictures of channels: {error}; without it the rest works") from error


def _pictures(about: Mapping[str, Any], tensors: Mapping[str, Bytes]) -> Pictures:
    units = []
    for i, words in enumerate(about["units"]):
        shown = tuple(Shown(**{**each, "means": tuple(each["means"])}) for each in words["shown"])
        units.append(UnitPictures(words["unit"], words["low"], words["high"], shown, tensors[f"maps/{i}"]))
    return Pictures(tensors["images"], tuple(about["labels"]), tuple(units))
