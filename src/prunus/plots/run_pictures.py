"""Pictures that a run keeps for its report: a few channels on a few held-out images.

round-01/pictures.safetensors holds the images and the maps of the weakest channels (removed in that round) and of the
strongest ones as bytes, and a description as JSON in its header. Nothing else in a run depends on this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from prunus.errors import FileError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.plots.choices import as_pixels, feature_maps, shrunk
from prunus.score.scores import Scores

PICTURES = "pictures.safetensors"
FORMAT, VERSION = "prunus-pictures", 1
NUM_UNITS, NUM_IMAGES, EACH = 6, 4, 2  # units, images, weakest and strongest channels of a unit
IMAGE_SIDE, MAP_SIDE = 48, 32  # pixels; larger ones are shrunk, so that the file stays below 200 KB

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ShownChannel:
    """One channel of a unit."""

    channel: int  # its number in the original network
    removed: bool
    score: float
    means: tuple[float, ...]  # mean response to each image


@dataclass(frozen=True, eq=False)
class UnitPictures:
    """Channels of a unit from the weakest to the strongest. The bytes 0 to 255 of a map stand for `low` to `high`."""

    unit: str
    low: float
    high: float
    shown: tuple[ShownChannel, ...]
    maps: Bytes  # [channels, N, height, width]


@dataclass(frozen=True, eq=False)
class RunPictures:
    """Images, their classes, and units."""

    images: Bytes  # [N, height, width, 1 or 3]
    labels: tuple[str, ...]
    units: tuple[UnitPictures, ...]


def take_pictures(
    graph: ChannelGraph,
    scores: Scores,
    plan: Plan,
    images: Tensor,
    labels: Sequence[int],
    names: Sequence[str] | None = None,
) -> RunPictures:
    """Maps of the weakest removed and the strongest kept channels, for units spread over the network."""
    chosen = {name: _weak_and_strong(scores, plan, name) for name, lost in plan.removed().items() if lost}
    maps = feature_maps(graph, images, chosen)  # unit -> [N, channels, height, width]
    seen = [name for name in chosen if maps[name].shape[2:].numel() > 1]
    spread = [seen[i] for i in np.unique(np.linspace(0, len(seen) - 1, min(NUM_UNITS, len(seen))).round().astype(int))]
    return RunPictures(
        images=as_pixels(shrunk(images, IMAGE_SIDE)),
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
        ShownChannel(c, c not in kept, float(scores.values[name][c]), tuple(maps[:, i].mean((1, 2)).tolist()))
        for i, c in enumerate(channels)
    )
    small = shrunk(maps, MAP_SIDE)
    # One scale for all channels of the unit; scaled alone, a channel without information would look like the others.
    low, high = float(small.min()), float(small.max())
    levels = ((small - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8)
    return UnitPictures(name, low, high, shown, np.ascontiguousarray(levels.transpose(0, 1).numpy()))


def to_bytes(found: RunPictures) -> bytes:
    """The content of the file."""
    units = [
        {"unit": unit.unit, "low": unit.low, "high": unit.high, "shown": [asdict(each) for each in unit.shown]}
        for unit in found.units
    ]
    about = {"format": FORMAT, "version": VERSION, "labels": found.labels, "units": units}
    tensors = {"images": found.images, **{f"maps/{i}": unit.maps for i, unit in enumerate(found.units)}}
    return bytes(save(tensors, {"about": json.dumps(about)}))


def load_pictures(path: Path) -> RunPictures | None:
    """Read the pictures of a run; None if there is no such file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if about["format"] != FORMAT or about["version"] != VERSION:
            raise ValueError(f'"format": "{FORMAT}" expected')
        return _pictures(about, tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{path} cannot be read as pictures of channels: {error}; delete it, and the report leaves them out"
        ) from error


def _pictures(about: Mapping[str, Any], tensors: Mapping[str, Bytes]) -> RunPictures:
    units = []
    for i, words in enumerate(about["units"]):
        shown = tuple(ShownChannel(**{**each, "means": tuple(each["means"])}) for each in words["shown"])
        units.append(UnitPictures(words["unit"], words["low"], words["high"], shown, tensors[f"maps/{i}"]))
    return RunPictures(tensors["images"], tuple(about["labels"]), tuple(units))
