"""Detection: boxes with classes. Quality is COCO's average precision, computed by COCO's own code (pycocotools).

    task = prunus.detection()                        # predictions of ultralytics and torchvision, as they come
    prunus.evaluate(yolo, loader, task=task)         # quality: AP50-95; details: AP50 and AP75

The labels of a batch are a list with a dict for each image: `boxes` [n, 4] as x1, y1, x2, y2 in pixels of the network's
input, `labels` [n] with their classes from 0, and optionally `crowd` [n] (True: a region of many objects, as in COCO)
and `frame` [5]: how the image was letterboxed, see `scaled_back`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus.errors import DataError, ModelError, RunError
from prunus.tasks import ByClass, Quality, Task

Decoder = Callable[[Any], Sequence[Mapping[str, Tensor]]]
CONFIDENT = 0.25  # the score from which a box is shown, counts in the loss, and is a label where images have none
IOU = 0.5  # overlap from which a box is found, in the loss
MOST = 100  # boxes of an image that COCO looks at
LEAST_SCORE = 0.001  # candidates below it change average precision by nothing
OVERLAP = 0.7  # of two boxes of a class, from which the one with the lower score goes
CANDIDATES = 1000  # of an image that are looked at, the best ones
CHOSEN = 300  # boxes of an image
END_TO_END = 6  # x1, y1, x2, y2, score, class of a detector that chooses its boxes itself


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes that a detector found in one image. `classes` is their number, if it is known."""

    boxes: Tensor  # [n, 4] x1, y1, x2, y2
    scores: Tensor  # [n]
    labels: Tensor  # [n]
    classes: int | None = None

    def pick(self, which: Tensor) -> Boxes:
        """Some of the boxes: their places, or True and False for each."""
        return Boxes(self.boxes[which], self.scores[which], self.labels[which], self.classes)

    def above(self, score: float) -> Boxes:
        """Those with at least this score."""
        return self.pick(self.scores >= score)

    def best(self, most: int) -> Boxes:
        """The `most` boxes with the highest scores, the best first."""
        return self.pick(self.scores.argsort(descending=True, stable=True)[:most])

    def cpu(self) -> Boxes:
        """The same in the memory of the processor."""
        return Boxes(self.boxes.cpu(), self.scores.cpu(), self.labels.cpu(), self.classes)


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes [n, 4] and [m, 4]: [n, m], 0 where both are empty."""
    sides = torch.minimum(boxes[:, None, 2:], others[:, 2:]) - torch.maximum(boxes[:, None, :2], others[:, :2])
    both = sides.clamp(min=0).prod(2)
    areas, its = ((part[:, 2:] - part[:, :2]).clamp(min=0).prod(1) for part in (boxes, others))
    return both / (areas[:, None] + its - both).clamp(min=torch.finfo(both.dtype).tiny)


def suppress(found: Boxes, overlap: float = OVERLAP, most: int = CHOSEN) -> Boxes:
    """Non-maximum suppression: boxes that no better kept box of their class overlaps by more than `overlap`."""
    best = found.best(CANDIDATES)
    same = best.labels[:, None] == best.labels
    rivals = ((overlaps(best.boxes, best.boxes) > overlap) & same).cpu().numpy()
    alive = np.ones(len(rivals), dtype=bool)
    kept: list[int] = []
    for place in range(len(rivals)):
        if alive[place] and len(kept) < most:
            kept.append(place)
            alive &= ~rivals[place]
    return best.pick(torch.tensor(kept, dtype=torch.long, device=best.boxes.device))


def decode_tensor(values: Tensor) -> list[Boxes]:
    """The boxes of each image of one tensor.

    [N, 4 + C, places] holds centre, width and height in pixels and the probabilities of C classes at each place; every
    class of a place is a candidate, as in COCO's evaluation. [N, boxes, 6] holds x1, y1, x2, y2, score and class.
    """
    values = values.detach().float()
    if values.shape[2] == END_TO_END and values.shape[1] != 4 + END_TO_END:
        images = [Boxes(rows[:, :4], rows[:, 4], rows[:, 5].round().long()) for rows in values]
        return [image.above(LEAST_SCORE).best(CHOSEN) for image in images]
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
        images.append(suppress(Boxes(boxes, columns[4 + rows, places], rows, classes)))
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


def matches(found: Boxes, boxes: Tensor, labels: Tensor, iou: float) -> int:
    """How many of the boxes are found: each by the best box of its class that overlaps it enough and found no other."""
    table = overlaps(found.boxes, boxes.to(found.boxes)) * (found.labels[:, None] == labels.to(found.labels.device))
    free, hits = torch.ones(len(boxes), dtype=torch.bool), 0
    for row in table.cpu():
        value, place = (row * free).max(0) if len(row) else (torch.zeros(()), torch.zeros((), dtype=torch.long))
        if float(value) >= iou:
            free[place], hits = False, hits + 1
    return hits


@dataclass(eq=False)
class Predictions:
    """What a detector returned. `maps`, its only field, are the tensors that a teacher is compared by.

    The boxes are chosen when they are first needed.
    """

    maps: Any
    output: InitVar[Any]
    decode: InitVar[Decoder | None] = None

    def __post_init__(self, output: Any, decode: Decoder | None) -> None:
        """Keep what boxes are chosen from."""
        self.whole, self._decode = output, decode

    @property
    def decodes(self) -> bool:
        """Whether there are boxes to choose: ultralytics' detectors return none in training mode."""
        if self._decode is not None or isinstance(self.whole, Tensor):
            return True
        return isinstance(self.whole, list | tuple) and (_is_list_of_dicts(self.whole) or self.maps is not self.whole)

    @cached_property
    def images(self) -> list[Boxes]:
        """The boxes of each image, the best first."""
        if self._decode is not None or _is_list_of_dicts(self.whole):
            return [_checked_boxes(each) for each in (self._decode(self.whole) if self._decode else self.whole)]
        pair = isinstance(self.whole, list | tuple) and len(self.whole) == 2
        first = self.whole[0] if pair else self.whole
        if not isinstance(first, Tensor) or first.ndim != 3:
            got = f"a tensor {list(first.shape)}" if isinstance(first, Tensor) else f"a {type(self.whole).__name__}"
            raise ModelError(
                f"the network returns {got}, and neither the boxes of torchvision's detectors (a list of dicts) nor "
                "those of ultralytics' (a tensor [images, 4 + classes, places]): pass a decoder: "
                "prunus.detection(decode=...), the network's output -> boxes, scores, labels of each image"
            )
        return decode_tensor(first)


def _is_list_of_dicts(output: Any) -> bool:
    return isinstance(output, list | tuple) and bool(output) and all(isinstance(each, Mapping) for each in output)


def _checked_boxes(one: Any) -> Boxes:
    """The boxes of one image, from a dict of boxes, scores and labels."""
    if not isinstance(one, Mapping) or not {"boxes", "scores", "labels"} <= set(one):
        got = sorted(map(str, one)) if isinstance(one, Mapping) else type(one).__name__
        raise ModelError(f"each image needs a dict with boxes [n, 4], scores [n] and labels [n]; got {got}")
    boxes = Boxes(one["boxes"].detach().float(), one["scores"].detach().float(), one["labels"].detach().long())
    shapes = [list(part.shape) for part in (boxes.boxes, boxes.scores, boxes.labels)]
    count = len(boxes.scores)
    if shapes != [[count, 4], [count], [count]]:
        raise ModelError(f"boxes, scores and labels of an image must be [n, 4], [n] and [n]; got {shapes}")
    return boxes


def _maps(output: Any) -> Any:
    """The part of an output that is the same in training and in eval mode: what heads compute, before any decoding.

    ultralytics returns (boxes, maps) in eval mode and maps alone in training; the maps may be a list of tensors, or a
    dict that also holds the features that the heads read, which a pruned network has fewer of.
    """
    pair = isinstance(output, list | tuple) and len(output) == 2 and isinstance(output[0], Tensor)
    if pair and isinstance(output[1], Mapping | list | tuple) and output[1]:
        output = output[1]
    if isinstance(output, Mapping):
        kept = {key: value for key, value in output.items() if key != "feats"}
        return {key: _maps(value) if isinstance(value, Mapping) else value for key, value in kept.items()}
    return output


def check_boxes(predictions: Predictions, labels: Any, index: int) -> None:
    """DataError unless labels are boxes and classes for each image, and the classes are the network's."""
    listed = isinstance(labels, list | tuple) and all(
        isinstance(one, Mapping) and {"boxes", "labels"} <= set(one) for one in labels
    )
    if not listed:
        raise DataError(
            f"batch {index}: the labels of a detector are a list with a dict of boxes [n, 4] and labels [n] for each "
            f"image; got {type(labels).__name__}"
        )
    numbers = [image.classes for image in predictions.images] if predictions.decodes else []
    known = next((number for number in numbers if number is not None), None)
    for place, one in enumerate(labels):
        where, boxes, classes = f"batch {index}, image {place}", one["boxes"], one["labels"]
        if boxes.shape != (len(classes), 4) or classes.ndim != 1 or classes.is_floating_point():
            raise DataError(
                f"{where}: expected boxes [n, 4] and whole numbers labels [n], got {list(boxes.shape)} and "
                f"{list(classes.shape)} ({classes.dtype})"
            )
        if not len(boxes):
            continue
        if not bool(boxes.isfinite().all()) or not bool((boxes[:, 2:] > boxes[:, :2]).all()):
            raise DataError(
                f"{where}: a box is x1, y1, x2, y2 with x1 < x2 and y1 < y2; some are not: {boxes.tolist()}"
            )
        if int(classes.min()) < 0 or (known is not None and int(classes.max()) >= known):
            raise DataError(
                f"{where} has boxes of the classes {int(classes.min())} to {int(classes.max())}, and the network has "
                + (f"{known} classes, 0 to {known - 1}" if known is not None else "none below 0")
                + ": number the classes from 0, or build the network with more"
            )


# -- quality


@dataclass(frozen=True, eq=False)
class DetectedImage:
    """The boxes that were found in an image, and those that are there, in pixels of the image as it is on disk."""

    found: Boxes
    boxes: Tensor  # [n, 4]
    labels: Tensor  # [n]
    crowd: Tensor  # [n], True where COCO neither asks for objects nor counts them


def detected_images(predictions: Predictions, labels: Sequence[Mapping[str, Tensor]]) -> list[DetectedImage]:
    """What was found and what is there, image by image, on the CPU."""
    if len(predictions.images) != len(labels):
        raise DataError(f"the network gave boxes for {len(predictions.images)} images, and {len(labels)} have labels")
    items = []
    for found, there in zip(predictions.images, labels, strict=True):
        frame = there.get("frame")
        truth = scaled_back(there["boxes"].float(), frame).cpu()
        crowd = there.get("crowd", torch.zeros(len(truth), dtype=torch.bool)).cpu()
        best = found.best(MOST)
        best = replace(best, boxes=scaled_back(best.boxes, frame)).cpu()
        items.append(DetectedImage(best, truth, there["labels"].cpu(), crowd))
    return items


def precisions(items: Sequence[DetectedImage]) -> Tensor:
    """COCO's average precision of every class at the overlaps 0.5, 0.55, ... 0.95: [10, classes]; NaN without boxes.

    The mean precision at the recalls 0, 0.01, ... 1, with at most 100 boxes for each image.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise RunError(f'average precision needs pycocotools ({error}): pip install "prunus[detection]"') from error

    def rows(image: int, boxes: Tensor, labels: Tensor, key: str, values: Tensor) -> list[dict[str, Any]]:
        """Boxes as COCO writes them: x, y, width, height."""
        wide = boxes.double()
        sized = torch.cat([wide[:, :2], wide[:, 2:] - wide[:, :2]], 1)
        columns = zip(sized.tolist(), labels.tolist(), values.tolist(), strict=True)
        return [{"image_id": image, "category_id": label, "bbox": box, key: value} for box, label, value in columns]

    truths: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for image, item in enumerate(items):
        truths += rows(image, item.boxes, item.labels, "iscrowd", item.crowd.int())
        answers += rows(image, item.found.boxes, item.found.labels, "score", item.found.scores)
    sizes = _sizes(items)
    if not sizes.any():
        raise DataError(
            "no image has a box, so that average precision has no meaning: check the labels. Without labels, the "
            f"original network found nothing with a score of {CONFIDENT} or more: check its weights, and mean, std and "
            "size of the images"
        )
    if not answers:
        return torch.where(sizes > 0, 0.0, torch.nan).expand(10, -1).double()
    for number, truth in enumerate(truths, start=1):
        truth |= {"id": number, "area": truth["bbox"][2] * truth["bbox"][3]}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        coco = COCO()
        coco.dataset = {
            "images": [{"id": image} for image in range(len(items))],
            "categories": [{"id": number} for number in range(len(sizes))],
            "annotations": truths,
            "info": {},
        }
        coco.createIndex()
        measured = COCOeval(coco, coco.loadRes(answers), "bbox")
        measured.params.areaRng, measured.params.areaRngLbl = [[0, 1e10]], ["all"]
        measured.params.maxDets = [MOST]
        measured.evaluate()
        measured.accumulate()
    table = np.asarray(measured.eval["precision"], dtype=np.float64)[:, :, :, 0, 0]  # [overlaps, recalls, classes]
    return torch.from_numpy(np.where(table < 0, np.nan, table).mean(1))


def average_precision(items: Sequence[DetectedImage]) -> float:
    """AP50-95: the mean over classes that have boxes and over the overlaps 0.5 to 0.95."""
    return float(precisions(items).nanmean())


def at_overlaps(items: Sequence[DetectedImage]) -> dict[str, float]:
    """AP50 and AP75: the mean over classes at one overlap."""
    table = precisions(items)
    return {"AP50": float(table[0].nanmean()), "AP75": float(table[5].nanmean())}


def _sizes(items: Sequence[DetectedImage]) -> Tensor:
    """How many boxes each class has [classes]."""
    labels = torch.cat([part for item in items for part in (item.labels, item.found.labels)])
    known = [item.found.classes or 0 for item in items]
    classes = max([int(labels.max()) + 1 if len(labels) else 1, *known])
    return torch.bincount(torch.cat([item.labels[~item.crowd] for item in items]), minlength=classes)


def missed(predictions: Predictions, labels: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """1 - F1, mean over images, of boxes with a score of 0.25 or more that overlap one of their class by half or more.

    It has no gradient: it says how good boxes are, and nothing is trained with it. 0 where no boxes are chosen, as in
    training mode: there a teacher is the whole loss.
    """
    if not predictions.decodes:
        return torch.zeros(())
    values = []
    for item in detected_images(predictions, labels):
        sure = item.found.above(CONFIDENT)
        hits = matches(sure, item.boxes, item.labels, IOU)
        total = len(sure.scores) + len(item.boxes)
        values.append(1.0 - (2 * hits / total if total else 1.0))
    return torch.tensor(values).mean() if values else torch.zeros(())


def sure_boxes(predictions: Predictions) -> list[dict[str, Tensor]]:
    """Labels for images that have none: the boxes with a score of 0.25 or more, the best 100 of each image."""
    labels = []
    for found in predictions.images:
        sure = found.above(CONFIDENT).best(MOST)
        real = sure.pick((sure.boxes[:, 2:] > sure.boxes[:, :2]).all(1))
        labels.append({"boxes": real.boxes, "labels": real.labels})
    return labels


def detection(
    decode: Decoder | None = None,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    outputs: Callable[[Any], Any] | None = None,
) -> Task:
    """The task of finding objects: boxes with classes. Quality is AP50-95, with AP50 and AP75 among the details.

        task = prunus.detection(decode=lambda output: my_boxes(output))

    Args:
        decode: The network's output in eval mode -> for each image a dict of `boxes` [n, 4] (x1, y1, x2, y2 in pixels
            of its input), `scores` [n] and `labels` [n]. By default the outputs of ultralytics' and torchvision's
            detectors are understood.
        loss: (the network's output, labels) -> mean loss of a batch, to train with; best is the detector's own. By
            default there is none: a teacher alone trains (`distill`, `mimic`), or the library of the detector.
        outputs: The network's output -> the tensors that a teacher is compared by, the same in training and in eval
            mode; by default all that heads compute.
    """

    def wrapped(output: Any) -> Predictions:
        return Predictions((outputs or _maps)(output), output, decode)

    return Task(
        name="detection",
        label_kind="boxes",
        loss=missed if loss is None else lambda predictions, labels: loss(predictions.whole, labels),
        quality=Quality(detected_images, "AP50-95", "%", average_precision, collects=True, details=at_overlaps),
        outputs=wrapped,
        check=check_boxes,
        as_labels=sure_boxes,
        by_class=ByClass("AP50-95", None, lambda items: precisions(items).mean(0), _sizes, of="boxes"),
    )


DETECTION = replace(
    detection(),
    name="detection",
    help="Boxes with classes: COCO's average precision at overlaps of 50 to 95% (AP50-95)",
)
