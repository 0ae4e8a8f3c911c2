"""MONAI: networks of medical imaging, flat and of volumes."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from tests.networks import Network

FLAT, VOLUME = ((1, 64, 64),), ((1, 16, 16, 16),)
U = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
V = {**U, "spatial_dims": 3}
DYNAMIC = {
    "kernel_size": [3, 3, 3, 3],
    "strides": [1, 2, 2, 2],
    "upsample_kernel_size": [2, 2, 2],
    "filters": [16, 32, 64, 96],
}
STEPS = {"channels": (8, 16, 32, 64), "strides": (2, 2, 2)}
# name -> class, arguments, shape
TABLE: dict[str, tuple[str, dict[str, Any], tuple[tuple[int, ...], ...]]] = {
    "UNet": ("UNet", {**U, **STEPS, "num_res_units": 2}, FLAT),
    "UNet, batch norm": ("UNet", {**V, **STEPS, "norm": "batch"}, VOLUME),
    "BasicUNet": ("BasicUNet", {**U, "features": (16, 16, 32, 64, 128, 16)}, FLAT),
    "BasicUNetPlusPlus": ("BasicUNetPlusPlus", {**U, "features": (16, 16, 32, 64, 128, 16)}, FLAT),
    "DynUNet": ("DynUNet", {**U, **DYNAMIC}, FLAT),
    "DynUNet, residual": ("DynUNet", {**U, **DYNAMIC, "res_block": True, "norm_name": "batch"}, FLAT),
    "AttentionUnet": ("AttentionUnet", {**U, **STEPS}, FLAT),
    "SegResNet": ("SegResNet", {**V, "init_filters": 8}, VOLUME),
    "SegResNet, batch norm": ("SegResNet", {**U, "init_filters": 8, "norm": "batch"}, FLAT),
    "VNet": ("VNet", V, VOLUME),
    "HighResNet": ("HighResNet", V, VOLUME),
    "DenseNet121": ("DenseNet121", U, FLAT),
    "SEResNet50": ("SEResNet50", {"spatial_dims": 2, "in_channels": 1, "num_classes": 2}, FLAT),
}


def library() -> Any:
    return importlib.import_module("monai.networks.nets")


def make(name: str) -> nn.Module:
    kind, arguments, _ = TABLE[name]
    return getattr(library(), kind)(**arguments)  # type: ignore[no-any-return]


def networks() -> dict[str, Network]:
    return {name: Network(lambda name=name: make(name), shape) for name, (_, _, shape) in TABLE.items()}
