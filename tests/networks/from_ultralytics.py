"""ultralytics: YOLO, built from its configuration files. Its licence is the AGPL: only this table imports it."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from torch import nn

from tests.networks import Network

# name -> class
TABLE = {
    "yolov8n": "DetectionModel",
    "yolo11n": "DetectionModel",
    "yolov8n-seg": "SegmentationModel",
    "yolov8n-cls": "ClassificationModel",
}


def library() -> Any:
    return importlib.import_module("ultralytics.nn.tasks")


def make(name: str) -> nn.Module:
    return getattr(library(), TABLE[name])(f"{name}.yaml", verbose=False)  # type: ignore[no-any-return]


def networks() -> dict[str, Network]:
    return {name: Network(partial(make, name)) for name in TABLE}
