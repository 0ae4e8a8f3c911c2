"""torchvision: classification, segmentation, video, detection and optical flow.

Its wheel may want two operators that a CPU build of PyTorch does not have. They are declared before the import, and the
removal of overlapping boxes (nms) is implemented in plain PyTorch.
"""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.tasks.one_stage import OneStage
from tests.networks import Network

CLASSIFIERS = re.compile(
    "(alexnet|vgg|resnet|resnext|wide_resnet|densenet|mobilenet|efficientnet|mnasnet|regnet|shufflenet|squeezenet"
    "|googlenet|inception_v3|convnext)"
)
SEGMENTATION = ["deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"]
VIDEO = ["r3d_18", "mc3_18", "r2plus1d_18", "s3d"]
DETECTION = [
    "ssdlite320_mobilenet_v3_large",
    "retinanet_resnet50_fpn",
    "fcos_resnet50_fpn",
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn",
]


class TwoStages(nn.Module):
    """The backbone and both heads of Faster R-CNN; the whole image, pooled, stands for the boxes of RoIAlign."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.proposals = detector.backbone, detector.rpn.head
        self.box_head, self.box_predictor = detector.roi_heads.box_head, detector.roi_heads.box_predictor

    def forward(self, images: Tensor) -> Any:
        features = list(self.backbone(images).values())
        box = F.adaptive_avg_pool2d(features[0], 7)
        return self.proposals(features), self.box_predictor(self.box_head(box))


def library() -> Any:
    """torchvision.models, also where its compiled operators (built for CUDA) do not fit a PyTorch without CUDA."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:  # operator torchvision::nms does not exist
        for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
    schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", schema)
    torch.library.impl("torchvision::nms", "CPU", non_maximum_suppression)
    models = importlib.import_module("torchvision.models")
    # It asks for its compiled operators before each nms; the other one, RoIAlign, it has in Python too, where it would
    # compile it at the first call.
    importlib.import_module("torchvision.ops.boxes")._assert_has_ops = lambda: None
    aligning = importlib.import_module("torchvision.ops.roi_align")
    aligning._roi_align = aligning._roi_align.__wrapped__
    return models


def non_maximum_suppression(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Places of the boxes (x1, y1, x2, y2) that no better kept box overlaps by more than the threshold, best first."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order].double()
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept: list[int] = []
    for place in range(len(boxes)):
        rivals = boxes[kept]
        sides = torch.minimum(rivals[:, 2:], boxes[place, 2:]) - torch.maximum(rivals[:, :2], boxes[place, :2])
        both = sides.clamp(min=0).prod(1)
        if not bool((both / (areas[kept] + areas[place] - both) > iou_threshold).any()):
            kept.append(place)
    return order[kept]


def make(name: str, **options: Any) -> nn.Module:
    return library().get_model(name, weights=None, **options)  # type: ignore[no-any-return]


def video(name: str) -> nn.Module:
    """The network; the last pooling of s3d, made for 7 x 7 pixels, adapts, so that small films fit."""
    model = make(name)
    if name == "s3d":
        model.avgpool = nn.AdaptiveAvgPool3d(1)
    return model


def detector(name: str) -> nn.Module:
    whole = make(name, weights_backbone=None)
    return TwoStages(whole) if "rcnn" in name else OneStage(whole)


# Small ones of their kind: six of twelve layers for images of 64 pixels, and a block of each of the four sizes.
VIT = {"image_size": 64, "patch_size": 16, "num_layers": 6, "num_heads": 6, "hidden_dim": 192, "mlp_dim": 768}
MAXVIT = {"input_size": (64, 64), "stem_channels": 32, "partition_size": 2, "block_channels": [32, 64, 128, 256]}
MAXVIT |= {"block_layers": [1, 1, 1, 1], "head_dim": 32, "stochastic_depth_prob": 0.2}


def transformer(module: str, kind: str, options: dict[str, Any]) -> nn.Module:
    library()
    return getattr(importlib.import_module(f"torchvision.models.{module}"), kind)(**options)  # type: ignore[no-any-return]


def pretrained_style(name: str, depth: str) -> nn.Module:
    """A detector as its pretrained weights are loaded into: with the statistics of all batch norms fixed in buffers."""
    library()
    detection = importlib.import_module("torchvision.models.detection")
    norm = importlib.import_module("torchvision.ops.misc").FrozenBatchNorm2d
    backbone = detection.backbone_utils.resnet_fpn_backbone(backbone_name=depth, weights=None, norm_layer=norm)
    generator = torch.Generator().manual_seed(0)
    for module in backbone.modules():
        for buffer in module.buffers(recurse=False) if isinstance(module, norm) else ():
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    whole = getattr(detection, name)(backbone, num_classes=91)
    return TwoStages(whole) if "RCNN" in name else OneStage(whole)


def classifiers() -> dict[str, Network]:
    """The 67 convnets of ImageNet."""
    models = library()
    names = [n for n in models.list_models(module=models) if CLASSIFIERS.match(n) and "128gf" not in n]
    found = {name: Network(partial(make, name)) for name in names}
    found["googlenet"] = Network(partial(make, "googlenet", init_weights=False))
    # The kernel of its auxiliary head fits no other size.
    found["inception_v3"] = Network(partial(make, "inception_v3", init_weights=False), ((3, 299, 299),))
    return found


def networks() -> dict[str, Network]:
    found = classifiers()
    found |= {name: Network(partial(make, name)) for name in ("swin_t", "swin_v2_t")}
    found["vit_b_16"] = Network(partial(transformer, "vision_transformer", "VisionTransformer", VIT))
    found["maxvit_t"] = Network(partial(transformer, "maxvit", "MaxVit", MAXVIT))
    found |= {n: Network(partial(make, n, weights_backbone=None)) for n in SEGMENTATION}
    found |= {n: Network(partial(video, n), ((3, 16 if n == "s3d" else 8, 32, 32),)) for n in VIDEO}
    found |= {n: Network(partial(detector, n), ((3, 96, 96),)) for n in DETECTION}
    found |= {
        f"{name.lower()}_{depth}_frozen_norms": Network(partial(pretrained_style, name, depth), ((3, 96, 96),))
        for name, depth in (("FasterRCNN", "resnet50"), ("RetinaNet", "resnet18"))
    }
    found["raft_small"] = Network(partial(make, "raft_small"), ((3, 128, 128),) * 2, torch.float32)
    return found
