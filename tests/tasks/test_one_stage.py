"""Detectors of torchvision through the task detection: boxes and losses are the detectors' own."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import ModelError
from tests.networks import from_torchvision

SIDE = 96


def ssdlite() -> Any:
    made = from_torchvision.make("ssdlite320_mobilenet_v3_large", weights_backbone=None, num_classes=3)
    made.transform.fixed_size, made.topk_candidates = (SIDE, SIDE), 20
    return made


class Backbone(nn.Module):
    """One map of 32 channels, with every eighth pixel."""

    out_channels = 32

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU()) for i, o in WIDTHS]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"0": self.body(x)}


WIDTHS = ((3, 8), (8, 12), (12, 32))


def small(name: str) -> Any:
    """A RetinaNet or FCOS of torchvision with a small backbone. Untrained, it is sure of nothing."""
    from_torchvision.library()
    detection = importlib.import_module("torchvision.models.detection")
    anchors = detection.anchor_utils.AnchorGenerator(((16,),), ((1.0,),))
    how = {"score_thresh": 0.008, "topk_candidates": 20, "anchor_generator": anchors}
    return getattr(detection, name)(Backbone(), num_classes=2, min_size=SIDE, max_size=SIDE, **how)


def with_neck(name: str, backbone: str) -> Any:
    """A RetinaNet or Faster R-CNN: the small backbone, or the feature pyramid of a MobileNetV3 or a ResNet."""
    from_torchvision.library()
    detection = importlib.import_module("torchvision.models.detection")
    made: dict[str, Any] = {"weights": None, "trainable_layers": 5}
    if backbone == "small":
        body, maps = Backbone(), 1
    elif backbone.startswith("mobilenet"):
        body, maps = detection.backbone_utils.mobilenet_backbone(backbone_name=backbone, fpn=True, **made), 3
    else:
        body = detection.backbone_utils.resnet_fpn_backbone(backbone_name=backbone, returned_layers=[2, 3], **made)
        maps = 3
    anchors = detection.anchor_utils.AnchorGenerator(((16, 32),) * maps, ((1.0,),) * maps)
    sizes = {"min_size": SIDE, "max_size": SIDE}
    if name == "RetinaNet":
        return detection.RetinaNet(body, 3, anchor_generator=anchors, score_thresh=0.0, topk_candidates=20, **sizes)
    parts = detection.faster_rcnn
    head, predictor = parts.TwoMLPHead(body.out_channels * 7 * 7, 128), parts.FastRCNNPredictor(128, 3)
    few = {"rpn_post_nms_top_n_test": 12, "rpn_post_nms_top_n_train": 12, "rpn_batch_size_per_image": 500}
    few |= {"box_head": head, "box_predictor": predictor, "box_batch_size_per_image": 500}
    return detection.FasterRCNN(body, rpn_anchor_generator=anchors, **few, **sizes)


ONE_STAGE = {
    "SSDlite": ssdlite,
    "RetinaNet": lambda: small("RetinaNet"),
    "FCOS": lambda: small("FCOS"),
    "RetinaNet, MobileNetV3": lambda: with_neck("RetinaNet", "mobilenet_v3_large"),
}
TWO_STAGES = {
    "Faster R-CNN, MobileNetV3": lambda: with_neck("FasterRCNN", "mobilenet_v3_large"),
    "Faster R-CNN, ResNet-18": lambda: with_neck("FasterRCNN", "resnet18"),
}
DETECTORS = {**ONE_STAGE, **TWO_STAGES}


def traced_part(name: str, detector: Any) -> tuple[Any, pr.Task]:
    return (pr.two_stage if name in TWO_STAGES else pr.one_stage)(detector, SIDE)


def example(detector: Any) -> tuple[list[Tensor], Tensor, list[dict[str, Tensor]]]:
    """Images in [0, 1], the same normalised, and labels whose classes begin with 0."""
    draw = torch.Generator().manual_seed(0)
    images = [torch.rand(3, SIDE, SIDE, generator=draw) for _ in range(2)]
    mean, std = (torch.tensor(getattr(detector.transform, f"image_{what}")).view(3, 1, 1) for what in ("mean", "std"))
    boxes = [torch.tensor([[10.0, 20.0, 50.0, 70.0]]), torch.tensor([[5.0, 5.0, 60.0, 40.0], [30.0, 50.0, 80.0, 90.0]])]
    labels = [{"boxes": b, "labels": torch.arange(len(b))} for b in boxes]
    return images, torch.stack([(image - mean) / std for image in images]), labels


@pytest.mark.parametrize("name", DETECTORS)
def test_boxes_and_loss_are_those_of_the_whole_detector(name: str) -> None:
    torch.manual_seed(0)
    detector = DETECTORS[name]().eval()
    images, normalised, labels = example(detector)
    dense, task = traced_part(name, detector)
    assert task.outputs is not None
    offset = int(name == "SSDlite" or name in TWO_STAGES)  # where the background is class 0
    with torch.no_grad():
        predictions = task.outputs(dense(normalised))
        for mine, its in zip(predictions.images, detector(images), strict=True):
            assert len(its["scores"]) and torch.equal(mine.scores, its["scores"])
            assert torch.allclose(mine.boxes, its["boxes"], atol=1e-3)
            assert torch.equal(mine.labels, its["labels"] - offset)
        targets = [{**one, "labels": one["labels"] + offset} for one in labels]
        stages = (detector, getattr(detector, "rpn", None), getattr(detector, "roi_heads", None))
        for module in detector.modules():  # batch norms and dropout as in eval mode, the detector as in training
            module.training = any(module is stage for stage in stages)
        want = sum(float(part) for part in detector(images, targets).values())
    detector.eval()
    loss = task.loss(task.outputs(dense(normalised)), labels)
    assert float(loss.detach()) == pytest.approx(want, rel=1e-4) and loss.requires_grad


def test_pruned_and_put_back() -> None:
    torch.manual_seed(0)
    detector = small("RetinaNet").eval()
    images, normalised, labels = example(detector)
    dense, task = pr.one_stage(detector, SIDE)
    graph = pr.trace(dense, normalised, streams="coupled")
    plan = pr.uniform(graph, pr.score(graph, None, "l1"), 0.3, units=list(graph.units))
    cut = pr.prune(graph, plan)
    assert graph.cost(plan).macs < 0.75 * graph.macs
    measured = pr.evaluate(cut, [(normalised, labels)], task=task)
    assert 0 <= measured.quality <= 1
    detector.backbone, detector.head = cut.backbone, cut.head
    with torch.no_grad():
        assert task.outputs is not None
        found = task.outputs(cut(normalised)).images
        assert torch.equal(detector(images)[0]["scores"], found[0].scores)


def test_a_pruned_faster_rcnn_finds_what_the_zeroed_one_finds() -> None:
    torch.manual_seed(0)
    detector = with_neck("FasterRCNN", "mobilenet_v3_large").double().eval()
    images, normalised, _ = example(detector)
    images, normalised = [image.double() for image in images], normalised.double()
    first, task = pr.two_stage(detector, SIDE)
    graph = pr.trace(first, normalised, streams="coupled", check=False)
    plan = pr.uniform(graph, pr.score(graph, None, "l1"), 0.3, units=list(graph.units))
    assert graph.cost(plan).macs < 0.75 * graph.macs
    with torch.no_grad():
        before = detector(images)
        with pr.zeroed(graph, plan):  # the modules are those of the detector
            want = detector(images)
    cut = pr.prune(graph, plan, check=False)  # this test compares the whole
    smaller = copy.deepcopy(detector)
    smaller.backbone, smaller.rpn.head = cut.backbone, cut.head
    with torch.no_grad():
        for mine, its, other in zip(smaller(images), want, before, strict=True):
            assert len(its["scores"]) and torch.allclose(mine["boxes"], its["boxes"])
            assert torch.allclose(mine["scores"], its["scores"]) and torch.equal(mine["labels"], its["labels"])
            assert its["boxes"].shape != other["boxes"].shape or not torch.allclose(its["boxes"], other["boxes"])
        assert task.outputs is not None
        for found, its in zip(task.outputs(cut(normalised)).images, smaller(images), strict=True):
            assert torch.allclose(found.boxes.double(), its["boxes"], atol=1e-3)


def test_the_box_head_is_a_network_of_its_own() -> None:
    """The lines of docs/tasks.md, on a whole detector."""
    torch.manual_seed(0)
    detector = with_neck("FasterRCNN", "small").eval()
    photos = list(torch.rand(10, 2, 3, SIDE, SIDE))
    heads: Any = detector.roi_heads
    pooled: list[Tensor] = []
    hook = heads.box_head.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs[0]))
    with torch.no_grad():
        for images in photos:
            detector(list(images))
    hook.remove()
    box = nn.Sequential(heads.box_head, heads.box_predictor)
    before = sum(parameter.numel() for parameter in box.parameters())
    result = pr.compress(box, pooled[:6], pooled[6:], target=0.4, only=("*",), timing=False)
    heads.box_head, heads.box_predictor = result.model
    assert sum(parameter.numel() for parameter in heads.parameters()) < 0.65 * before
    assert result.summary["after"]["holdout"]["quality"] > 0.5  # proposals that keep their likeliest class
    with torch.no_grad():
        assert {"boxes", "scores", "labels"} <= set(detector(list(photos[0]))[0])


def test_other_networks_are_refused() -> None:
    with pytest.raises(ModelError, match="no one-stage detector of torchvision: it has no backbone"):
        pr.one_stage(nn.Linear(2, 2), 32)
    with pytest.raises(ModelError, match=r"FasterRCNN is no one-stage detector.*take prunus.two_stage"):
        pr.one_stage(with_neck("FasterRCNN", "resnet18"), 32)
    with pytest.raises(ModelError, match=r"FCOS is no two-stage detector.*take prunus.one_stage"):
        pr.two_stage(small("FCOS"), 32)
