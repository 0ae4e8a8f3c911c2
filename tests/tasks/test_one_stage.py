"""SSDlite, RetinaNet and FCOS of torchvision through the task detection: boxes and losses are the detectors' own."""

from __future__ import annotations

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


DETECTORS = {"SSDlite": ssdlite, "RetinaNet": lambda: small("RetinaNet"), "FCOS": lambda: small("FCOS")}


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
    dense, task = pr.one_stage(detector, SIDE)
    assert task.outputs is not None
    with torch.no_grad():
        predictions = task.outputs(dense(normalised))
        for mine, its in zip(predictions.images, detector(images), strict=True):
            assert len(its["scores"]) and torch.equal(mine.scores, its["scores"])
            assert torch.allclose(mine.boxes, its["boxes"], atol=1e-3)
            assert torch.equal(mine.labels, its["labels"] - int(name == "SSDlite"))
        targets = [{**one, "labels": one["labels"] + int(name == "SSDlite")} for one in labels]
        for module in detector.modules():  # batch norms and dropout as in eval mode, the detector as in training
            module.training = module is detector
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


def test_other_networks_are_refused() -> None:
    with pytest.raises(ModelError, match="no one-stage detector of torchvision: it has no backbone"):
        pr.one_stage(nn.Linear(2, 2), 32)
