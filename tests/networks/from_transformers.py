"""Hugging Face transformers: image classifiers and a segmenter, built from their configurations with few layers."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from tests.networks import Network, Shape

HEADS = "ForImageClassification"
TABLE: dict[str, dict[str, Any]] = {
    "ResNet": {"layer_type": "bottleneck", "depths": [2, 2, 2, 2]},
    "RegNet": {"depths": [2, 2, 3, 2]},
    "MobileNetV1": {},
    "MobileNetV2": {},
    "EfficientNet": {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    "Bit": {"depths": [2, 2, 2, 2]},
    "ConvNext": {"depths": [2, 2, 3, 2]},
    "ConvNextV2": {"depths": [2, 2, 3, 2]},
    "PoolFormer": {},
    "FocalNet": {"depths": [2, 2, 2, 2]},
    "Cvt": {},
    "Levit": {},
    "MobileViT": {},
    "ViT": {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 4, "intermediate_size": 384},
    "DeiT": {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 4, "intermediate_size": 384},
    "Dinov2": {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 4, "patch_size": 8},
    "Swin": {"depths": [2, 2], "num_heads": [3, 6], "embed_dim": 48},
    "Segformer": {},
    "PvtV2": {},
    "Beit": {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 4, "intermediate_size": 384},
    "Swinv2": {"depths": [2, 2], "num_heads": [3, 6], "embed_dim": 48, "window_size": 4},
    "MobileViTV2": {},
    "Hiera": {"depths": [1, 1, 2, 1]},
    "Yolos": {"hidden_size": 192, "num_attention_heads": 3, "num_hidden_layers": 4, "intermediate_size": 384},
}
ENDINGS = {"Segformer": "ForSemanticSegmentation", "Yolos": "ForObjectDetection"}
SIZES = {"Levit": 224, "Hiera": 224}
PAIRS = ("Hiera", "Yolos")  # configurations that want height and width


def library() -> Any:
    return importlib.import_module("transformers")


def make(name: str) -> nn.Module:
    side = shape_of(name)[1]
    size = [side, side] if name in PAIRS else side
    config = getattr(library(), f"{name}Config")(image_size=size, num_labels=10, **TABLE[name])
    return getattr(library(), name + ENDINGS.get(name, HEADS))(config)  # type: ignore[no-any-return]


def networks() -> dict[str, Network]:
    return {name: Network(lambda name=name: make(name), (shape_of(name),)) for name in TABLE}


def shape_of(name: str) -> Shape:
    size = SIZES.get(name, 64)
    return (3, size, size)
