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
from prunus.tasks.boxes import Found, decode_tensor, matches, scaled_back

Decoder = Callable[[Any], Sequence[Mapping[str, Tensor]]]
CONFIDENT = 0.25  # the score from which a box is shown, and counts in the loss
IOU = 0.5  # overlap from which a box is found, in the loss
MOST = 100  # boxes of an image that COCO looks at
MORE = "pass a decoder: prunus.detection(decode=...), the network's output -> boxes, scores, labels of each image"


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
    def images(self) -> list[Found]:
        """The boxes of each image, the best first."""
        if self._decode is not None:
            return [_checked_found(each) for each in self._decode(self.whole)]
        if _is_list_of_dicts(self.whole):
            return [_checked_found(each) for each in self.whole]
        return decode_tensor(_boxes_tensor(self.whole))


def _is_list_of_dicts(output: Any) -> bool:
    return isinstance(output, list | tuple) and bool(output) and all(isinstance(each, Mapping) for each in output)


def _boxes_tensor(output: Any) -> Tensor:
    """The tensor of an output that holds boxes and scores: [N, 4 + classes, places] or [N, boxes, 6]."""
    first = output[0] if isinstance(output, list | tuple) and len(output) == 2 else output
    if not isinstance(first, Tensor) or first.ndim != 3:
        got = f"a tensor {list(first.shape)}" if isinstance(first, Tensor) else f"a {type(output).__name__}"
        raise ModelError(
            f"the network returns {got}, and neither the boxes of torchvision's detectors (a list of dicts) nor those "
            f"of ultralytics' (a tensor [images, 4 + classes, places]): {MORE}"
        )
    return first


def _checked_found(one: Any) -> Found:
    """The boxes of one image, from a dict of boxes, scores and labels."""
    missing = [key for key in ("boxes", "scores", "labels") if not isinstance(one, Mapping) or key not in one]
    if missing:
        got = sorted(map(str, one)) if isinstance(one, Mapping) else type(one).__name__
        raise ModelError(f"each image needs a dict with boxes [n, 4], scores [n] and labels [n]; got {got}")
    found = Found(one["boxes"].detach().float(), one["scores"].detach().float(), one["labels"].detach().long())
    shapes = [list(part.shape) for part in (found.boxes, found.scores, found.labels)]
    count = len(found.scores)
    if shapes != [[count, 4], [count], [count]]:
        raise ModelError(f"boxes, scores and labels of an image must be [n, 4], [n] and [n]; got {shapes}")
    return found


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
    known = (
        next((f.classes for f in predictions.images if f.classes is not None), None) if predictions.decodes else None
    )
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
class Seen:
    """An image: the boxes that were found, and those that are there, in pixels of the image as it is on disk."""

    found: Found
    boxes: Tensor  # [n, 4]
    labels: Tensor  # [n]
    crowd: Tensor  # [n], True where COCO neither asks for objects nor counts them


def seen_images(predictions: Predictions, labels: Sequence[Mapping[str, Tensor]]) -> list[Seen]:
    """What was found and what is there, image by image, on the CPU."""
    if len(predictions.images) != len(labels):
        raise DataError(f"the network gave boxes for {len(predictions.images)} images, and {len(labels)} have labels")
    items = []
    for found, there in zip(predictions.images, labels, strict=True):
        frame = there.get("frame")
        truth = scaled_back(there["boxes"].float(), frame).cpu()
        crowd = there.get("crowd", torch.zeros(len(truth), dtype=torch.bool)).cpu()
        best = found.best(MOST)
        items.append(Seen(best.at(scaled_back(best.boxes, frame)).cpu(), truth, there["labels"].cpu(), crowd))
    return items


def precisions(items: Sequence[Seen]) -> Tensor:
    """COCO's average precision of every class at the overlaps 0.5, 0.55, ... 0.95: [10, classes]; NaN without boxes.

    The mean precision at the recalls 0, 0.01, ... 1, with at most 100 boxes for each image.
    """
    evaluator = _coco_evaluator()
    classes = _num_classes(items)
    truths: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for image, item in enumerate(items):
        for box, label, crowd in zip(item.boxes.tolist(), item.labels.tolist(), item.crowd.tolist(), strict=True):
            size = [box[2] - box[0], box[3] - box[1]]
            truths.append(
                {"id": len(truths) + 1, "image_id": image, "category_id": label, "bbox": [*box[:2], *size]}
                | {"area": size[0] * size[1], "iscrowd": int(crowd)}
            )
        found = item.found
        for box, score, label in zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True):
            size = [box[2] - box[0], box[3] - box[1]]
            answers.append({"image_id": image, "category_id": label, "bbox": [*box[:2], *size], "score": score})
    if not any(not truth["iscrowd"] for truth in truths):
        raise DataError("no image has a box, so that average precision has no meaning: check the labels")
    if not answers:
        there = torch.bincount(torch.cat([item.labels[~item.crowd] for item in items]), minlength=classes) > 0
        return torch.where(there, 0.0, torch.nan).expand(10, -1).double()
    return evaluator(truths, answers, len(items), classes)


def _coco_evaluator() -> Callable[[Any, Any, int, int], Tensor]:
    """COCO's evaluation, which prints what it does: that is dropped."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise RunError(f'average precision needs pycocotools ({error}): pip install "prunus[detection]"') from error

    def evaluated(truths: Any, answers: Any, images: int, classes: int) -> Tensor:
        with contextlib.redirect_stdout(io.StringIO()):
            coco = COCO()
            coco.dataset = {
                "images": [{"id": image} for image in range(images)],
                "categories": [{"id": number} for number in range(classes)],
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

    return evaluated


def _num_classes(items: Sequence[Seen]) -> int:
    known = [item.found.classes for item in items if item.found.classes is not None]
    largest = max(
        (int(part.max()) for item in items for part in (item.labels, item.found.labels) if len(part)), default=0
    )
    return max([largest + 1, *known])


def average_precision(items: Sequence[Seen]) -> float:
    """AP50-95: the mean over classes that have boxes and over the overlaps 0.5 to 0.95."""
    return float(precisions(items).nanmean())


def at_overlaps(items: Sequence[Seen]) -> dict[str, float]:
    """AP50 and AP75: the mean over classes at one overlap."""
    table = precisions(items)
    return {"AP50": float(table[0].nanmean()), "AP75": float(table[5].nanmean())}


def _sizes(items: Sequence[Seen]) -> Tensor:
    return torch.bincount(torch.cat([item.labels[~item.crowd] for item in items]), minlength=_num_classes(items))


def missed(predictions: Predictions, labels: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """1 - F1, mean over images, of boxes with a score of 0.25 or more that overlap one of their class by half or more.

    It has no gradient: it says how good boxes are, and nothing is trained with it. 0 where no boxes are chosen, as in
    training mode: there a teacher is the whole loss.
    """
    if not predictions.decodes:
        return torch.zeros(())
    values = []
    for item in seen_images(predictions, labels):
        sure = item.found.above(CONFIDENT)
        hits = matches(sure, item.boxes, item.labels, IOU)
        total = len(sure.scores) + len(item.boxes)
        values.append(1.0 - (2 * hits / total if total else 1.0))
    return torch.tensor(values).mean() if values else torch.zeros(())


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

    def given_loss(predictions: Predictions, labels: Any) -> Tensor:
        assert loss is not None
        return loss(predictions.whole, labels)

    return Task(
        name="detection",
        label_kind="boxes",
        loss=missed if loss is None else given_loss,
        quality=Quality(seen_images, "AP50-95", "%", average_precision, collects=True, details=at_overlaps),
        outputs=wrapped,
        check=check_boxes,
        by_class=ByClass("AP50-95", None, lambda items: precisions(items).mean(0), _sizes, of="boxes"),
    )


DETECTION = replace(
    detection(),
    name="detection",
    help="Boxes with classes: COCO's average precision at overlaps of 50 to 95% (AP50-95)",
)
