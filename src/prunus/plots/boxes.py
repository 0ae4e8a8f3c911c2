"""Pictures of boxes: a few images with the true boxes, and with those of two networks, one row below the other."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from prunus.plots.choices import as_pixels
from prunus.tasks import Task
from prunus.tasks.detection import CONFIDENT
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches, call, device_of, move
from prunus.util.state import evaluating, generators_kept

NUM_IMAGES = 6
CELL, GAP, LINE = 280, 6, 2  # pixels of an image, between images, of the line of a box
# Colours that people with any colour vision can tell apart (Okabe and Ito 2008); classes share them in turn.
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2")


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
    images, labels = images[:NUM_IMAGES], labels[:NUM_IMAGES]
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
    side = CELL + GAP
    page = Image.new("RGBA", (side * len(pixels) - GAP, side * len(rows) - GAP), (0, 0, 0, 0))
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
    scale = CELL / max(colours.shape[:2])
    cell = Image.new("RGB", (CELL, CELL))
    size = round(colours.shape[1] * scale), round(colours.shape[0] * scale)
    cell.paste(Image.fromarray(colours).resize(size, Image.Resampling.NEAREST if scale >= 2 else None))
    pen = ImageDraw.Draw(cell)
    for place in range(len(boxes)):
        label = int(labels[place])
        colour = COLOURS[label % len(COLOURS)]
        text = names[label] if names is not None and label < len(names) else str(label)
        if scores is not None:
            text += f" {float(scores[place]):.2f}"
        left, top, right, bottom = (float(value) * scale for value in boxes[place])
        pen.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=LINE)
        corner = (max(0.0, left), max(0.0, top - 12))
        pen.rectangle(pen.textbbox(corner, text), fill=colour)
        pen.text(corner, text, fill="black")
    return cell
