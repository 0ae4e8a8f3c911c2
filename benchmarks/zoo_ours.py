"""What the zoo's table says of one network: pruned at once, exact, counted right, and alive afterwards."""

from __future__ import annotations

import copy
import re
import tempfile
import time
from collections import Counter
from typing import Any

import torch
from torch import nn

import prunus as sc
from benchmarks.zoo_peer import is_depthwise
from prunus.errors import PrunusError
from tests import proof, zoo_nets
from tests.exporting import onnx_error

# The largest relative error that counts as exact; in float32 rounding is larger, and more so in a deep network.
EXACT = {torch.float64: 1e-12, torch.float32: 1e-4}
LARGE = 10_000_000  # parameters; larger networks are loaded from files with streams selected only, to save time
MODES = ("select", "coupled")
ONNX_NAMES = (
    "torchvision:resnet50 torchvision:vgg11_bn torchvision:densenet121 torchvision:efficientnet_b0 "
    "torchvision:mobilenet_v3_large torchvision:shufflenet_v2_x1_0 torchvision:squeezenet1_1 "
    "torchvision:regnet_y_400mf torchvision:convnext_tiny torchvision:googlenet timm:resnetv2_50 timm:ghostnet_100 "
    "timm:res2net50_26w_4s"
)
ONNX = ONNX_NAMES.split()


def examine(name: str) -> dict[str, Any]:
    """Figures for both ways of handling streams, or why the network is refused."""
    model, image = zoo_nets.prepared(name)
    row: dict[str, Any] = {"exact": EXACT[zoo_nets.entry(name).dtype], "modes": {}}
    try:
        for mode in MODES:
            row["modes"][mode] = examine_mode(model, image, mode)
    except PrunusError as error:
        return {"refused": " ".join(f"{type(error).__name__}: {error}".split())}
    if name in ONNX:
        graph = sc.trace(model, image)
        small = sc.prune(graph, sc.Plan.of(graph, proof.random_keep(graph, seed=3)))
        row["onnx"] = onnx_error(small, image[:1], dynamo=True)
    return row


def examine_mode(model: nn.Module, image: proof.Example, mode: str) -> dict[str, Any]:
    start = time.perf_counter()
    graph = sc.trace(model, image, streams=mode)
    traced = time.perf_counter()
    keep = proof.random_keep(graph, seed=1)
    plan = sc.Plan.of(graph, keep)
    planned = time.perf_counter()
    small = sc.prune(graph, plan)
    pruned = time.perf_counter()
    whole = proof.outputs(model, image)
    with sc.zeroed(graph, plan):
        zeroed = proof.outputs(model, image)
    with proof.masked(model, graph, keep):
        masked = proof.outputs(model, image)
    batch = proof.batch_of(image)
    prunable, layers = coverage(model, graph)
    return {
        "error": max(proof.relative_error(proof.outputs(small, image), zeroed), proof.relative_error(zeroed, masked)),
        "changed": proof.relative_error(zeroed, whole),
        "macs_right": graph.macs * batch == proof.counted_macs(model, image, in_layers=graph.layers)
        and graph.cost(plan).macs * batch == proof.counted_macs(small, image, in_layers=graph.layers),
        "removed": 1 - graph.cost(plan).macs / graph.macs,
        "units": len(graph.units),
        "prunable": prunable,
        "layers": layers,
        "frozen": dict(Counter(kind_of_reason(reason) for reason in graph.frozen.values())),
        "trace_seconds": traced - start,
        "prune_seconds": pruned - planned,
        **afterlife(model, small, plan, image),
    }


def afterlife(model: nn.Module, small: nn.Module, plan: sc.Plan, image: proof.Example) -> dict[str, bool | None]:
    """A pruned network is copied, saved, loaded into a fresh one, and trained for a step."""
    want = proof.outputs(small, image)
    copied = copy.deepcopy(small)
    same_copy = all(torch.equal(a, b) for a, b in zip(proof.outputs(copied, image), want, strict=True))
    large = sum(parameter.numel() for parameter in model.parameters()) > LARGE
    loads = None if large and plan.streams == "coupled" else loads_again(model, small, plan, image)
    wanted = proof.train_step(copy.deepcopy(model), image) & set(dict(small.named_parameters()))
    return {"copies": same_copy, "loads": loads, "trains": proof.train_step(copied, image) == wanted}


def loads_again(model: nn.Module, small: nn.Module, plan: sc.Plan, image: proof.Example) -> bool:
    """Whether the files of a pruned network give the same network again."""
    fresh = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in fresh.state_dict().values():
            tensor.zero_()
    with tempfile.TemporaryDirectory() as folder:
        sc.save(small, plan, folder)
        loaded = sc.load(folder, fresh)
    outputs = zip(proof.outputs(loaded, image), proof.outputs(small, image), strict=True)
    return proof.same_state(loaded, small) and all(torch.equal(one, other) for one, other in outputs)


def coverage(model: nn.Module, graph: sc.ChannelGraph) -> tuple[int, int]:
    """Layers (depthwise aside) whose inputs or outputs a unit lets shrink, and all that the network has."""
    wide = [unit for unit in graph.units.values() if unit.width > unit.granule]
    touched = {end.module for unit in wide for end in (*unit.readers, *unit.writers)}
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)) and not is_depthwise(module)
    ]
    return sum(name in touched for name in layers), len(layers)


def kind_of_reason(reason: str) -> str:
    """A reason without the names of the layers it speaks of, so that like reasons add up."""
    return re.sub(r"\d+", "#", re.sub(r"\b\w+(\.\w+)+", "…", reason))
