"""Boxes of one image: chosen among a detector's candidates, scaled back to the image, matched with the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prunus.errors import ModelError

LEAST_SCORE = 0.001  # candidates below it change average precision by nothing
OVERLAP = 0.7  # of two boxes of a class, from which the one with the lower score goes
CANDIDATES = 1000  # of an image that are looked at, the best ones
CHOSEN = 300  # boxes of an image
END_TO_END = 6  # x1, y1, x2, y2, score, class of a detector that chooses its boxes itself


@dataclass(frozen=True, eq=False)
class Found:
    """Boxes that a detector found in one image. `classes` is their number, if it is known."""

    boxes: Tensor  # [n, 4] x1, y1, x2, y2
    scores: Tensor  # [n]
    labels: Tensor  # [n]
    classes: int | None = None

    def pick(self, which: Tensor) -> Found:
        """Some of the boxes: their places, or True and False for each."""
        return Found(self.boxes[which], self.scores[which], self.labels[which], self.classes)

    def at(self, boxes: Tensor) -> Found:
        """The same at other places."""
        return Found(boxes, self.scores, self.labels, self.classes)

    def above(self, score: float) -> Found:
        """Those with at least this score."""
        return self.pick(self.scores >= score)

    def best(self, most: int) -> Found:
        """The `most` boxes with the highest scores, the best first."""
        return self.pick(self.scores.argsort(descending=True, stable=True)[:most])

    def cpu(self) -> Found:
        """The same in the memory of the processor."""
        return Found(self.boxes.cpu(), self.scores.cpu(), self.labels.cpu(), self.classes)


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes [n, 4] and [m, 4]: [n, m], 0 where both are empty."""
    sides = torch.minimum(boxes[:, None, 2:], others[:, 2:]) - torch.maximum(boxes[:, None, :2], others[:, :2])
    both = sides.clamp(min=0).prod(2)
    areas, its = ((part[:, 2:] - part[:, :2]).clamp(min=0).prod(1) for part in (boxes, others))
    return both / (areas[:, None] + its - both).clamp(min=torch.finfo(both.dtype).tiny)


def suppress(found: Found, overlap: float = OVERLAP, most: int = CHOSEN) -> Found:
    """Non-maximum suppression: boxes that no better kept box of their class overlaps by more than `overlap`."""
    best = found.best(CANDIDATES)
    same = best.labels[:, None] == best.labels
    rivals = ((overlaps(best.boxes, best.boxes) > overlap) & same).cpu().numpy()
    alive = np.ones(len(rivals), dtype=bool)
    kept = []
    for place in range(len(rivals)):
        if alive[place]:
            kept.append(place)
            alive &= ~rivals[place]
            if len(kept) == most:
                break
    return best.pick(torch.tensor(kept, dtype=torch.long, device=best.boxes.device))


def decode_tensor(values: Tensor) -> list[Found]:
    """The boxes of each image of one tensor.

    [N, 4 + C, places] holds centre, width and height in pixels and the probabilities of C classes at each place; every
    class of a place is a candidate, as in COCO's evaluation. [N, boxes, 6] holds x1, y1, x2, y2, score and class.
    """
    values = values.detach().float()
    if values.shape[2] == END_TO_END and values.shape[1] != 4 + END_TO_END:
        chosen = (Found(rows[:, :4], rows[:, 4], rows[:, 5].round().long()) for rows in values)
        return [found.above(LEAST_SCORE).best(CHOSEN) for found in chosen]
    classes, images = values.shape[1] - 4, []
    if classes < 1 or bool((values[:, 4:].amin() < 0) | (values[:, 4:].amax() > 1)):
        raise ModelError(
            f"expected [images, 4 + classes, places] with probabilities of classes, or [images, boxes, 6]; got "
            f"{list(values.shape)} with other values: pass a decoder, prunus.detection(decode=...)"
        )
    for columns in values:
        rows, places = (columns[4:] > LEAST_SCORE).nonzero(as_tuple=True)
        centre, size = columns[:2, places].T, columns[2:4, places].T
        boxes = torch.cat([centre - size / 2, centre + size / 2], 1)
        images.append(suppress(Found(boxes, columns[4 + rows, places], rows, classes)))
    return images


def scaled_back(boxes: Tensor, frame: Tensor | None) -> Tensor:
    """Boxes [n, 4] in pixels of the image before letterboxing, cut off at its borders.

    frame: (scale, left, top, width, height): the image of width x height pixels was scaled, and put with its corner at
    (left, top) of the network's input. None: the boxes stay as they are.
    """
    if frame is None:
        return boxes
    scale, left, top, width, height = frame.to(boxes.device, boxes.dtype)
    corners: Tensor = (boxes - torch.stack([left, top, left, top])) / scale
    return corners.clamp(min=0).minimum(torch.stack([width, height, width, height]))


def matches(found: Found, boxes: Tensor, labels: Tensor, iou: float) -> int:
    """How many of the boxes are found: each by the best box of its class that overlaps it enough and found no other."""
    table = overlaps(found.boxes, boxes.to(found.boxes)) * (found.labels[:, None] == labels.to(found.labels.device))
    free, hits = torch.ones(len(boxes), dtype=torch.bool), 0
    for row in table.cpu():
        value, place = (row * free).max(0) if len(row) else (torch.zeros(()), torch.zeros((), dtype=torch.long))
        if float(value) >= iou:
            free[place], hits = False, hits + 1
    return hits
