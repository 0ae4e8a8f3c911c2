"""timm: classifiers of all kinds, convolutional and others."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from torch import nn

from tests.networks import Network

NAMES = [
    "resnet50d",
    "resnet26t",
    "resnetv2_50",
    "seresnet50",
    "ecaresnet50t",
    "skresnet18",
    "res2net50_26w_4s",
    "resnest14d",
    "cspresnet50",
    "cspdarknet53",
    "darknet53",
    "dpn68",
    "dla34",
    "hrnet_w18_small",
    "regnety_004",
    "repvgg_a0",
    "xception41",
    "nfnet_l0",
    "vovnet39a",
    "selecsls42b",
    "gcresnet33ts",
    "lambda_resnet26t",
    "eca_nfnet_l0",
    "resnetv2_50d_gn",
    "tresnet_m",
    "densenetblur121d",
    "dla60_res2next",
    "ese_vovnet19b_dw",
    "regnetz_b16",
    "hgnetv2_b0",
    "tf_efficientnet_b0",
    "tf_efficientnetv2_b0",
    "mobilenetv3_large_100",
    "mobilenetv4_conv_small",
    "ghostnet_100",
    "mnasnet_100",
    "mixnet_s",
    "tinynet_e",
    "lcnet_050",
    "rexnet_100",
    "ghostnetv2_100",
    "mobileone_s0",
    "starnet_s1",
    "convnext_atto",
    "convnextv2_atto",
    "inception_next_atto",
    "fasternet_t0",
    "efficientvit_b0",
    "repvit_m0_9",
    "fastvit_t8",
    "edgenext_xx_small",
    "poolformer_s12",
    "resmlp_12_224",
    "levit_128s",
    "mobilevit_xxs",
    "vit_tiny_patch16_224",
]
# Pixels a side of the example: enough for the strides of the network, no more. 64 where nothing is said.
SIZES = {"levit_128s": 224}


def make(name: str) -> nn.Module:
    return library().create_model(name)  # type: ignore[no-any-return]


def library() -> Any:
    return importlib.import_module("timm")


def size_of(name: str) -> int:
    return SIZES.get(name, 224 if name.endswith("_224") else 64)


def networks() -> dict[str, Network]:
    return {name: Network(partial(make, name), ((3, size_of(name), size_of(name)),)) for name in NAMES}
