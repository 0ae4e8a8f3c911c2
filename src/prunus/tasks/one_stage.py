"""Detectors of torchvision: the part that can be traced, and its task.

    dense, task = prunus.one_stage(detector, size=320)                  # SSD, SSDlite, RetinaNet, FCOS
    result = prunus.compress(dense, train, holdout, speedup=1.4, task=task)
    detector.backbone, detector.head = result.model.backbone, result.model.head

    first, task = prunus.two_stage(detector, size=320)                  # Faster R-CNN
    result = prunus.compress(first, train, holdout, speedup=1.4, task=task)
    detector.backbone, detector.rpn.head = result.model.backbone, result.model.head

A detector returns as many boxes as it finds, so its forward has no fixed graph. Backbone and head have one. The choice
of boxes, and the loss, are the detector's own: it runs with what backbone and head have computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import ModelError
from prunus.tasks import Task
from prunus.tasks.detection import detection
from prunus.tasks.evaluate import tensors_of
from prunus.util.batches import device_of
from prunus.util.state import evaluating

BACKGROUND = ("SSD",)  # classes of detectors that number the background 0 and objects from 1


class OneStage(nn.Module):
    """Backbone and head of a detector: images [N, 3, size, size], normalised -> what the head computes, by name."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: Tensor) -> Any:
        """The outputs of the head."""
        return self.head(list(_by_name(self.backbone(images)).values()))


class FirstStage(nn.Module):
    """Backbone and region proposals of a Faster R-CNN: images [N, 3, size, size], normalised -> maps and proposals.

    The maps are outputs, because the second stage reads them at the proposed boxes: they keep their channels.
    """

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.rpn.head

    def forward(self, images: Tensor) -> dict[str, Any]:
        """Feature maps by name, and for each map how likely objects are and where."""
        maps = _by_name(self.backbone(images))
        return {"maps": maps, "proposals": self.head(list(maps.values()))}


def _by_name(maps: Any) -> Mapping[str, Tensor]:
    """The feature maps of a backbone, of which torchvision calls a single one "0"."""
    return {"0": maps} if isinstance(maps, Tensor) else maps


class _Given:
    """A module whose output is known: it returns that, whatever it is called with, and is the module otherwise."""

    def __init__(self, value: Any, module: Any) -> None:
        self._value, self._module = value, module

    def __call__(self, *_: Any) -> Any:
        return self._value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _AsTheyAre(nn.Module):
    """Stands in for a detector's transform: images are normalised and square already, and boxes are in their pixels."""

    def forward(self, images: Sequence[Tensor], targets: Any = None) -> Any:
        sizes = [tuple(image.shape[-2:]) for image in images]
        return SimpleNamespace(tensors=torch.stack(list(images)), image_sizes=sizes), targets

    def postprocess(self, result: Any, *_: Any) -> Any:
        return result


def one_stage(detector: nn.Module, size: int) -> tuple[OneStage, Task]:
    """Backbone and head of a torchvision detector as one network that can be pruned, and the task detection for it.

    Images are letterboxed to size x size pixels and normalised, with the detector's mean and standard deviation
    (`detector.transform.image_mean`, `image_std`). Classes of labels begin with 0, also where the detector has a
    background. The network shares its modules with `detector`; `prunus.compress` does not change them.

    Args:
        detector: An SSD, SSDlite, RetinaNet or FCOS of torchvision.
        size: Height and width of its images in pixels.

    Raises:
        ModelError: It is another kind of detector.
    """
    _check_parts(detector, ("backbone", "head", "transform", "anchor_generator", "postprocess_detections"), "one-stage")
    dense = OneStage(detector)
    with evaluating(detector), torch.no_grad():
        maps = _by_name(dense.backbone(torch.zeros(1, 3, size, size, device=device_of(detector))))
    grids = {name: tuple(value.shape[-2:]) for name, value in maps.items()}

    def given(output: Mapping[str, Tensor], _training: bool) -> dict[str, Any]:
        first = next(iter(output.values()))
        features = {name: first.new_zeros(len(first), 1, *grid) for name, grid in grids.items()}
        return {"backbone": _Given(features, detector.backbone), "head": _Given(dict(output), detector.head)}

    return dense, _task(detector, size, given, offset=int(type(detector).__name__ in BACKGROUND))


def two_stage(detector: Any, size: int) -> tuple[FirstStage, Task]:
    """The first stage of a Faster R-CNN as a network that can be pruned, and the task detection for the whole detector.

    Boxes and loss are those of the whole: the second stage runs on what the pruned first stage has computed. Images and
    labels are as for `one_stage`. The box head is a network of its own: see docs/tasks.md.

    Args:
        detector: A Faster R-CNN of torchvision.
        size: Height and width of its images in pixels.

    Raises:
        ModelError: It is another kind of detector.
    """
    _check_parts(detector, ("backbone", "rpn", "roi_heads", "transform"), "two-stage")

    def given(output: Mapping[str, Any], training: bool) -> dict[str, Any]:
        rpn, heads = copy.copy(detector.rpn), copy.copy(detector.roi_heads)
        rpn._modules = {**rpn._modules, "head": _Given(output["proposals"], detector.rpn.head)}
        rpn.training = heads.training = training
        return {"backbone": _Given(output["maps"], detector.backbone), "rpn": rpn, "roi_heads": heads}

    return FirstStage(detector), _task(detector, size, given, offset=1)


def _check_parts(detector: nn.Module, parts: Sequence[str], kind: str) -> None:
    missing = [part for part in parts if not hasattr(detector, part)]
    if missing:
        other = "two_stage" if hasattr(detector, "roi_heads") else "one_stage" if hasattr(detector, "head") else ""
        raise ModelError(
            f"{type(detector).__name__} is no {kind} detector of torchvision: it has no {missing[0]}"
            + (f"; take prunus.{other}" if other else "")
        )


def _task(detector: nn.Module, size: int, given: Callable[[Any, bool], dict[str, Any]], offset: int) -> Task:
    """The task whose boxes and loss are the detector's own, where `offset` is the class that labels call 0.

    given: (output of the traced part, whether losses are wanted) -> the modules that stand in for this part.
    """

    def whole(output: Any, training: bool) -> Any:
        """The detector with the output of its traced part in the place of this part, and of the transform."""
        first = next(tensors_of(output))
        runner: Any = copy.copy(detector)
        runner._modules = {**detector._modules, **given(output, training), "transform": _AsTheyAre()}
        runner.training = training
        return runner, list(first.new_zeros(len(first), 3, size, size))

    def decode(output: Any) -> list[dict[str, Tensor]]:
        runner, images = whole(output, training=False)
        return [{**found, "labels": found["labels"] - offset} for found in runner(images)]

    def loss(output: Any, labels: Any) -> Tensor:
        runner, images = whole(output, training=True)
        losses = runner(images, [{"boxes": one["boxes"], "labels": one["labels"] + offset} for one in labels])
        return torch.stack(list(losses.values())).sum()

    return detection(decode, loss=loss)
