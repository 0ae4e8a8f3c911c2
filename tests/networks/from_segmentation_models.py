"""segmentation_models_pytorch: each of its decoders, with encoders of different kinds."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from torch import nn

from tests.networks import Network

# decoder -> encoder
PAIRS = {
    "Unet": "resnet18",
    "UnetPlusPlus": "mobilenet_v2",
    "MAnet": "resnet18",
    "Linknet": "vgg11_bn",
    "FPN": "efficientnet-b0",
    "PSPNet": "resnet18",
    "PAN": "resnet18",
    "DeepLabV3": "timm-mobilenetv3_small_100",
    "DeepLabV3Plus": "resnet18",
    "UPerNet": "resnet18",
    "Segformer": "mit_b0",
}


def library() -> Any:
    return importlib.import_module("segmentation_models_pytorch")


def make(decoder: str) -> nn.Module:
    return getattr(library(), decoder)(PAIRS[decoder], encoder_weights=None, classes=3)  # type: ignore[no-any-return]


def networks() -> dict[str, Network]:
    return {n: Network(partial(make, n), ((3, 128, 128) if n == "PAN" else (3, 64, 64),)) for n in PAIRS}
