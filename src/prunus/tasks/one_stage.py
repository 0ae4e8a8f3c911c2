"""One-stage detectors of torchvision (SSD, SSDlite, RetinaNet, FCOS): the part that can be traced, and its task.

    dense, task = prunus.one_stage(detector, size=320)
    result = prunus.compress(dense, train, holdout, speedup=1.4, task=task)
    detector.backbone, detector.head = result.model.backbone, result.model.head

A detector returns as many boxes as it finds, so its forward has no fixed graph. Backbone and head have one. The choice
of boxes, and the loss, are the detector's own: it runs with what backbone and head have computed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import ModelError
from prunus.tasks import Task
from prunus.tasks.detection import detection
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
        return self.head(list(self.backbone(images).values()))


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
        ModelError: It is another kind of detector. Of Faster R-CNN only parts can be traced: prune `detector.backbone`.
    """
    parts = ("backbone", "head", "transform", "anchor_generator", "postprocess_detections")
    missing = [part for part in parts if not hasattr(detector, part)]
    if missing:
        raise ModelError(
            f"{type(detector).__name__} is no one-stage detector of torchvision: it has no {missing[0]}. Of a two-"
            "stage detector, such as Faster R-CNN, prune the backbone, with evaluate= that runs the whole detector"
        )
    dense, offset = OneStage(detector), int(type(detector).__name__ in BACKGROUND)
    with evaluating(detector), torch.no_grad():
        maps = dense.backbone(torch.zeros(1, 3, size, size, device=device_of(detector)))
    if not isinstance(maps, Mapping):
        raise ModelError(f"the backbone of {type(detector).__name__} should return feature maps by name")
    grids = {name: tuple(value.shape[-2:]) for name, value in maps.items()}

    def whole(output: Mapping[str, Tensor], training: bool) -> Any:
        """The detector with an output of its head in the place of backbone, head and transform."""
        first = next(iter(output.values()))
        features = {name: first.new_zeros(len(first), 1, *grid) for name, grid in grids.items()}
        backbone, head = _Given(features, detector.backbone), _Given(dict(output), detector.head)
        runner: Any = copy.copy(detector)
        runner._modules = {**detector._modules, "backbone": backbone, "head": head, "transform": _AsTheyAre()}
        runner.training = training
        return runner, list(first.new_zeros(len(first), 3, size, size))

    def decode(output: Any) -> list[dict[str, Tensor]]:
        runner, images = whole(output, training=False)
        return [{**found, "labels": found["labels"] - offset} for found in runner(images)]

    def loss(output: Any, labels: Any) -> Tensor:
        runner, images = whole(output, training=True)
        losses = runner(images, [{"boxes": one["boxes"], "labels": one["labels"] + offset} for one in labels])
        return torch.stack(list(losses.values())).sum()

    return dense, detection(decode, loss=loss)
