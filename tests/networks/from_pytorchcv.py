"""pytorchcv: networks of many papers, written by another hand than torchvision's and timm's."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from torch import nn

from tests.networks import Network

NAMES = """
    mixnet_s irevnet301 preresnet18 resneta10 diracnet18v2 peleenet sqnxt23_w1 shufflenet_g3_wd4 menet108_8x1_g3
    igcv3_wd4 bagnet9 bninception darts espnetv2_wd2 hardnet39ds ror3_56_cifar10 resnet20_cifar10 rir_cifar10
    shakeshakeresnet20_2x16d_cifar10 cbam_resnet18 bam_resnet18 drnc26 nin_cifar10
"""


def library() -> Any:
    return importlib.import_module("pytorchcv.model_provider")


def make(name: str) -> nn.Module:
    """The network; its last pooling, made for 7 x 7 pixels, adapts, so that small images fit."""
    model = library().get_model(name, pretrained=False)
    if isinstance(getattr(model.features, "final_pool", None), nn.AvgPool2d):
        model.features.final_pool = nn.AdaptiveAvgPool2d(1)
    return model  # type: ignore[no-any-return]


def networks() -> dict[str, Network]:
    sizes = {name: 32 if "cifar" in name else 64 for name in NAMES.split()}
    return {name: Network(partial(make, name), ((3, size, size),)) for name, size in sizes.items()}
