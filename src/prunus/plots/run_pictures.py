"""Pictures that a run keeps for its report: a few channels on a few held-out images.

round-01/pictures.safetensors holds the images and the maps of the weakest channels (removed in that round) and of the
strongest ones as bytes, and a description as JSON in its header. Nothing else in a run depends on this file.
`map_strip` and `image_strip` make PNGs of them for a page.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from prunus.errors import FileError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.plots.choices import as_pixels, feature_maps, shrunk
from prunus.plots.style import data_uri
from prunus.scoring.scores import Scores
from prunus.tasks import Task
from prunus.tasks.detection import CONFIDENT
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches, call, device_of, move
from prunus.util.state import evaluating, generators_kept
from prunus.util.typed_json import from_data, to_data

PICTURES = "pictures.safetensors"
FORMAT, VERSION = "prunus-pictures", 1
NUM_UNITS, NUM_IMAGES, EACH = 6, 4, 2  # units, images, weakest and strongest channels of a unit
IMAGE_SIDE, MAP_SIDE = 48, 32  # pixels; larger ones are shrunk, so that the file stays below 200 KB

Bytes = npt.NDArray[np.uint8]
NO_BYTES: Any = None  # stands for an array while the rest of a record is read from JSON


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
    maps: Bytes = NO_BYTES  # [channels, N, height, width]


@dataclass(frozen=True, eq=False)
class RunPictures:
    """Images, their classes, and units."""

    labels: tuple[str, ...]
    units: tuple[UnitPictures, ...]
    images: Bytes = NO_BYTES  # [N, height, width, 1 or 3]


def take_pictures(
    graph: ChannelGraph,
    scores: Scores,
    plan: Plan,
    images: Tensor,
    labels: Sequence[int],
    names: Sequence[str] | None = None,
) -> RunPictures:
    """Maps of the weakest removed and the strongest kept channels, for units spread over the network."""
    chosen: dict[str, list[int]] = {}
    for unit, lost in plan.removed().items():
        if lost:
            order, kept = scores.order(unit).tolist(), set(plan.keep[unit])
            chosen[unit] = [c for c in order if c not in kept][:EACH] + [c for c in order if c in kept][-EACH:]
    maps = feature_maps(graph, images, chosen)  # unit -> [N, channels, height, width]
    seen = [name for name in chosen if maps[name].shape[2:].numel() > 1]
    units = []
    for place in np.unique(np.linspace(0, len(seen) - 1, min(NUM_UNITS, len(seen))).round().astype(int)):
        name, kept = seen[place], set(plan.keep[seen[place]])
        shown = tuple(
            ShownChannel(c, c not in kept, float(scores.values[name][c]), tuple(maps[name][:, i].mean((1, 2)).tolist()))
            for i, c in enumerate(chosen[name])
        )
        small = shrunk(maps[name], MAP_SIDE)
        # One scale for all channels of the unit; scaled alone, a channel without information would look like others.
        low, high = float(small.min()), float(small.max())
        levels = ((small - low) / max(high - low, 1e-12) * 255).round().to(torch.uint8)
        units.append(UnitPictures(name, low, high, shown, np.ascontiguousarray(levels.transpose(0, 1).numpy())))
    classes = tuple(str(label) if names is None else names[label] for label in labels)
    return RunPictures(classes, tuple(units), as_pixels(shrunk(images, IMAGE_SIDE)))


def to_bytes(pictures: RunPictures) -> bytes:
    """The content of the file."""
    tensors = {"images": pictures.images, **{f"maps/{i}": unit.maps for i, unit in enumerate(pictures.units)}}
    units = [{"unit": u.unit, "low": u.low, "high": u.high, "shown": to_data(u.shown)} for u in pictures.units]
    about = {"format": FORMAT, "version": VERSION, "labels": list(pictures.labels), "units": units}
    return bytes(save(tensors, {"about": json.dumps(about)}))


def load_pictures(path: Path) -> RunPictures | None:
    """Read the pictures of a run; None if there is no such file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads(file.metadata()["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        if (about.pop("format"), about.pop("version")) != (FORMAT, VERSION):
            raise ValueError(f'"format": "{FORMAT}" expected')
        pictures = from_data(RunPictures, about)
        known = tuple(replace(unit, maps=tensors[f"maps/{i}"]) for i, unit in enumerate(pictures.units))
        return replace(pictures, units=known, images=tensors["images"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, FileError) as error:
        raise FileError(
            f"{path} cannot be read as pictures of channels: {error}; delete it, and the report leaves them out"
        ) from error


# -- PNGs for a page: maps and images side by side, as data URIs

CELL = 64  # smallest size of a cell in pixels, so that browsers do not enlarge it much
GAP = 16  # a cell is this many times as wide as a gap


def map_strip(maps: Bytes) -> str:
    """Maps [N, height, width] side by side as a data URI, from dark blue (0) to yellow (255)."""
    from matplotlib import colormaps

    return _strip([colormaps["viridis"](each, bytes=True)[..., :3] for each in maps])


def image_strip(images: Bytes) -> str:
    """Images [N, height, width, 1 or 3] side by side as a data URI."""
    return _strip([np.broadcast_to(each, (*each.shape[:2], 3)) for each in images])


def _strip(cells: Sequence[Bytes]) -> str:
    """A PNG of the cells in a row, with transparent gaps. Pixels are repeated so that a cell has at least CELL."""
    times = -(-CELL // max(cells[0].shape[:2]))
    large = [
        np.pad(cell.repeat(times, 0).repeat(times, 1), ((0, 0), (0, 0), (0, 1)), constant_values=255) for cell in cells
    ]
    gap = np.zeros((large[0].shape[0], max(1, round(large[0].shape[1] / GAP)), 4), np.uint8)
    row = np.concatenate([part for cell in large for part in (cell, gap)][:-1], 1)
    file = io.BytesIO()
    Image.fromarray(row, "RGBA").save(file, "PNG", optimize=True)
    return data_uri(file.getvalue())


# -- boxes: a few images with the true boxes, and with those of two networks, one row below the other

BOX_IMAGES = 4
BOX_CELL, BOX_GAP, BOX_LINE = 280, 6, 2  # pixels of an image, between images, of the line of a box
# Colours that people with any colour vision can tell apart (Okabe and Ito 2008); classes share them in turn.
BOX_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2")


def draw_boxes(
    models: Mapping[str, nn.Module], loader: Batches, task: Task, names: Sequence[str] | None = None
) -> tuple[bytes, list[str]] | None:
    """A PNG of the first images of a loader, and what its rows show: the labels, then what each network finds.

    Boxes with a score of 0.25 or more are drawn. None if the inputs are not images.
    """
    for number, batch in enumerate(loader):
        images, labels = unpack_for(task, batch, number)
        break
    else:
        return None
    if not isinstance(images, Tensor) or images.ndim != 4 or task.outputs is None:
        return None
    images, labels = images[:BOX_IMAGES], labels[:BOX_IMAGES]
    rows = {"labels": [(one["boxes"], one["labels"], None) for one in labels]}
    for name, model in models.items():
        with evaluating(model), generators_kept(), torch.no_grad():
            predictions = task.outputs(call(model, move(images, device_of(model))))
        detections = [each.above(CONFIDENT).cpu() for each in predictions.images]
        rows[name] = [(each.boxes, each.labels, each.scores) for each in detections]
    pixels = as_pixels(images)
    cells = [
        [_drawn(picture, *boxes, names) for picture, boxes in zip(pixels, row, strict=True)] for row in rows.values()
    ]
    side = BOX_CELL + BOX_GAP
    page = Image.new("RGBA", (side * len(pixels) - BOX_GAP, side * len(rows) - BOX_GAP), (0, 0, 0, 0))
    for top, row in enumerate(cells):
        for left, cell in enumerate(row):
            page.paste(cell, (left * side, top * side))
    file = io.BytesIO()
    page.save(file, "PNG", optimize=True)
    return file.getvalue(), list(rows)


def _drawn(
    picture: Any, boxes: Tensor, labels: Tensor, scores: Tensor | None, names: Sequence[str] | None
) -> Image.Image:
    """An image [H, W, 1 or 3] with its boxes, the names of their classes and their scores."""
    colours = np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
    scale = BOX_CELL / max(colours.shape[:2])
    cell = Image.new("RGB", (BOX_CELL, BOX_CELL))
    size = round(colours.shape[1] * scale), round(colours.shape[0] * scale)
    cell.paste(Image.fromarray(colours).resize(size, Image.Resampling.NEAREST if scale >= 2 else None))
    pen = ImageDraw.Draw(cell)
    for place in range(len(boxes)):
        label = int(labels[place])
        colour = BOX_COLOURS[label % len(BOX_COLOURS)]
        text = names[label] if names is not None and label < len(names) else str(label)
        if scores is not None:
            text += f" {float(scores[place]):.2f}"
        left, top, right, bottom = (float(value) * scale for value in boxes[place])
        pen.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=BOX_LINE)
        corner = (max(0.0, left), max(0.0, top - 12))
        pen.rectangle(pen.textbbox(corner, text), fill=colour)
        pen.text(corner, text, fill="black")
    return cell
