"""Some of torchvision's and timm's networks; `make zoo` runs them all, and those of others."""

from __future__ import annotations

import copy
import warnings
from itertools import cycle
from pathlib import Path

import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from benchmarks.zoo import EXACT, coverage
from tests import proof, zoo_nets
from tests.exporting import onnx_error
from tests.networks import from_torchvision

# One for each kind of structure; every other one is pruned with streams that are coupled.
NAMES = """torchvision:resnet18 torchvision:densenet121 torchvision:mobilenet_v3_small torchvision:shufflenet_v2_x0_5
    torchvision:googlenet timm:res2net50_26w_4s timm:ghostnet_100 timm:convnext_atto timm:skresnet18"""
EXPORTED = ["torchvision:mobilenet_v3_small", "torchvision:shufflenet_v2_x0_5", "timm:ghostnet_100", "timm:skresnet18"]


def network(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own, about themselves
        model = zoo_nets.create(name)
    image = zoo_nets.example(name, dtype=dtype)
    return zoo_nets.randomise(model.to(dtype), image), image


@pytest.mark.parametrize(("name", "mode"), [*zip(NAMES.split(), cycle(["select", "coupled"]), strict=False)])
def test_some_of_the_zoo(name: str, mode: str, tmp_path: Path) -> None:
    model, image = network(name)
    whole = proof.outputs(model, image)
    graph = pr.trace(model, image, streams=mode)
    plan = pr.Plan.of(graph, proof.random_keep(graph, seed=2))
    with pr.zeroed(graph, plan):
        zeroed = proof.outputs(model, image)
    small = pr.prune(graph, plan)
    want = proof.outputs(small, image)
    assert proof.relative_error(want, zeroed) <= 1e-12
    assert proof.relative_error(zeroed, whole) > 0.01
    assert graph.cost(plan).macs * len(image) == proof.counted_macs(small, image)
    assert graph.cost(plan).macs < 0.9 * graph.macs
    assert graph.macs * len(image) == proof.counted_macs(model, image)

    pr.save(small, plan, tmp_path)
    loaded = pr.load(tmp_path, copy.deepcopy(model))
    assert proof.same_state(loaded, small)
    assert torch.equal(proof.outputs(loaded, image)[0], want[0])
    assert proof.train_step(small, image) == set(dict(small.named_parameters()))


@pytest.mark.parametrize(("name", "dynamo"), [*((name, False) for name in EXPORTED), ("torchvision:resnet18", True)])
def test_some_export_to_onnx(name: str, dynamo: bool) -> None:
    model, image = network(name, torch.float32)
    graph = pr.trace(model, image, streams="select")
    small = pr.prune(graph, pr.Plan.of(graph, proof.random_keep(graph, seed=4)))
    assert onnx_error(small, image[:1], dynamo=dynamo) <= 1e-4


def test_the_zoo_is_whole() -> None:
    names = zoo_nets.zoo_names()
    assert len(names) == len(set(names)) >= 200
    assert len(from_torchvision.classifiers()) == 67
    assert {name.split(":")[0] for name in names} == set(zoo_nets.LIBRARIES)


# name -> layers that can shrink at least, with streams selected
NETWORKS = {
    "ultralytics:yolov8n": 63,
    "ultralytics:yolo11n": 80,
    "ultralytics:yolov8n-seg": 76,
    "ultralytics:yolov8n-cls": 27,
    "transformers:ConvNext": 18,
    "transformers:ConvNextV2": 23,  # what its layers read of streams, behind norms over channels
    "transformers:ViT": 8,
    "transformers:Swin": 8,
    "transformers:Segformer": 22,
    "kornia:HardNet": 7,
    "kornia:SOSNet": 7,
    "pytorchcv:mixnet_s": 81,
    "torchvision:raft_small": 53,
}


@pytest.mark.zoo
@pytest.mark.parametrize("streams", ["select", "coupled"])
@pytest.mark.parametrize("name", NETWORKS)
def test_half_of_what_can_go_is_pruned_exactly(name: str, streams: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own, about themselves
        model, image = zoo_nets.prepared(name)
        whole = proof.outputs(model, image)
        graph = pr.trace(model, image, streams=streams)
        keep = proof.random_keep(graph, seed=5, low=0.5, high=0.5)
        plan = pr.Plan.of(graph, keep)
        small = pr.prune(graph, plan)
        with pr.zeroed(graph, plan):
            zeroed = proof.outputs(model, image)
        exact = EXACT[zoo_nets.entry(name).dtype]
        assert proof.relative_error(proof.outputs(small, image), zeroed) <= exact
        assert streams == "coupled" or coverage(model, graph)[0] >= NETWORKS[name]
        if graph.units:
            assert proof.relative_error(zeroed, whole) > 0.01
            assert proof.counted_macs(small, image) < 0.95 * proof.counted_macs(model, image)
        assert all(torch.equal(a, b) for a, b in zip(proof.outputs(model, image), whole, strict=True))
