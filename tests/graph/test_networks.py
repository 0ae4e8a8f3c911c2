"""Networks that must be followed, pruned by half; `make zoo` runs this, with the libraries that it needs."""

from __future__ import annotations

import warnings

import pytest
import torch

import prunus as sc
from benchmarks.zoo_ours import EXACT, coverage
from tests import proof, zoo_nets

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
        graph = sc.trace(model, image, streams=streams)
        keep = proof.random_keep(graph, seed=5, low=0.5, high=0.5)
        plan = sc.Plan.of(graph, keep)
        small = sc.prune(graph, plan)
        with sc.zeroed(graph, plan):
            zeroed = proof.outputs(model, image)
        exact = EXACT[zoo_nets.entry(name).dtype]
        assert proof.relative_error(proof.outputs(small, image), zeroed) <= exact
        assert streams == "coupled" or coverage(model, graph)[0] >= NETWORKS[name]
        if graph.units:
            assert proof.relative_error(zeroed, whole) > 0.01
            assert proof.counted_macs(small, image) < 0.95 * proof.counted_macs(model, image)
        assert all(torch.equal(a, b) for a, b in zip(proof.outputs(model, image), whole, strict=True))
