"""timm: classifiers of all kinds, convolutional and others."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from torch import nn

from tests.networks import Network

NAMES = """
    resnet50d resnet26t resnetv2_50 seresnet50 ecaresnet50t skresnet18 res2net50_26w_4s resnest14d cspresnet50
    cspdarknet53 darknet53 dpn68 dla34 hrnet_w18_small regnety_004 repvgg_a0 xception41 nfnet_l0 vovnet39a
    selecsls42b gcresnet33ts lambda_resnet26t eca_nfnet_l0 resnetv2_50d_gn tresnet_m densenetblur121d
    dla60_res2next ese_vovnet19b_dw regnetz_b16 hgnetv2_b0 tf_efficientnet_b0 tf_efficientnetv2_b0
    mobilenetv3_large_100 mobilenetv4_conv_small ghostnet_100 mnasnet_100 mixnet_s tinynet_e lcnet_050
    rexnet_100 ghostnetv2_100 mobileone_s0 starnet_s1 convnext_atto convnextv2_atto inception_next_atto
    fasternet_t0 efficientvit_b0 repvit_m0_9 fastvit_t8 edgenext_xx_small poolformer_s12 resmlp_12_224
    levit_128s mobilevit_xxs vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 vit_small_patch14_reg4_dinov2
    vit_relpos_small_patch16_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 beit_base_patch16_224
    eva02_tiny_patch14_224 cait_xxs24_224 xcit_nano_12_p16_224 crossvit_tiny_240 swin_tiny_patch4_window7_224
    swinv2_tiny_window8_256 davit_tiny maxvit_rmlp_pico_rw_256 coatnet_0_rw_224 pvt_v2_b0 twins_svt_small
    mvitv2_tiny efficientformer_l1 efficientformerv2_s0 fastvit_sa12 mobilevitv2_050 tiny_vit_5m_224
    hiera_tiny_224 visformer_tiny botnet26t_256
"""
# Pixels a side of the example: enough for the strides of the network, no more. 64 where nothing is said.
SIZES = {
    **dict.fromkeys(("levit_128s", "efficientformer_l1", "efficientformerv2_s0", "visformer_tiny"), 224),
    **dict.fromkeys(("xcit_nano_12_p16_224",), 64),
    **{"crossvit_tiny_240": 240, "swinv2_tiny_window8_256": 256, "maxvit_rmlp_pico_rw_256": 256, "botnet26t_256": 256},
}
# Transformers that are told the size of their images, and so take smaller ones; and those of fewer blocks.
TOLD = {
    **dict.fromkeys(("vit_tiny_r_s16_p8_224", "vit_relpos_small_patch16_224", "cait_xxs24_224", "mvitv2_tiny"), 64),
    **dict.fromkeys(("deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "beit_base_patch16_224"), 64),
    **{"vit_small_patch14_reg4_dinov2": 56, "eva02_tiny_patch14_224": 56},
}
FEWER = {
    "beit_base_patch16_224": {"depth": 4},
    "cait_xxs24_224": {"depth": 4},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 2, 2)},
}


def make(name: str) -> nn.Module:
    told = {"img_size": TOLD[name]} if name in TOLD else {}
    return library().create_model(name, **told, **FEWER.get(name, {}))  # type: ignore[no-any-return]


def library() -> Any:
    return importlib.import_module("timm")


def size_of(name: str) -> int:
    return TOLD.get(name) or SIZES.get(name, 224 if name.endswith("_224") else 64)


def networks() -> dict[str, Network]:
    return {name: Network(partial(make, name), ((3, size_of(name), size_of(name)),)) for name in NAMES.split()}
