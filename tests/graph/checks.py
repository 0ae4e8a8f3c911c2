"""What several tests of graphs check: pruned equals zeroed, and nothing of the user's is changed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import prunus as pr
from tests import proof

IMAGE = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
Widths = dict[str, tuple[int, int]]  # unit -> width, granule
FREE: Widths = {"a:out": (8, 1), "b:out": (6, 1)}
HALVES: Widths = {"a:out": (8, 2), "b:out": (6, 1)}
KEPT: Widths = {"b:out": (6, 1)}  # the channels of `a` are all kept, those of `b` are not


def pruned_exactly(
    graph: pr.ChannelGraph, keep: Mapping[str, Sequence[int]], example: Any = IMAGE, tolerance: float = 1e-12
) -> nn.Module:
    """The network pruned to `keep`, which computes what zeroing and masks in front of the readers give."""
    plan = pr.Plan.of(graph, keep)
    small = pr.prune(graph, plan)
    got = proof.outputs(small, example)
    with pr.zeroed(graph, plan):
        assert proof.relative_error(got, proof.outputs(graph.model, example)) < tolerance
    with proof.masked(graph.model, graph, keep):
        assert proof.relative_error(got, proof.outputs(graph.model, example)) < tolerance
    return small


def is_exact(model: nn.Module, example: Any, widths: Widths, streams: Any = "select") -> pr.ChannelGraph:
    """The units are these, and two random plans are pruned exactly."""
    model = model.double().eval()
    before = proof.outputs(model, example)
    graph = pr.trace(model, example, streams)
    assert {name: (unit.width, unit.granule) for name, unit in graph.units.items()} == widths
    for seed in range(2):
        small = pruned_exactly(graph, proof.random_keep(graph, seed, 0.2, 0.8), example, 1e-10)
        assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters()) or not widths
    assert all(torch.equal(a, b) for a, b in zip(proof.outputs(model, example), before, strict=True))
    return graph


def scripted(thing: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(thing)


# -- nothing is changed


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything that must be found again: attributes, modes, hooks, tensors, random state."""
    state: dict[str, Any] = {"attributes": {}, "modes": {}, "hooks": {}, "tensors": {}, "memory": {}}
    for name, module in model.named_modules():
        state["modes"][name] = module.training
        state["attributes"][name] = {key: (id(value), _copied(value)) for key, value in vars(module).items()}
        state["hooks"][name] = [
            list(hooks.items()) for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        ]
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        grad = None if tensor.grad is None else tensor.grad.clone()
        state["tensors"][name] = (id(tensor), tensor.requires_grad, tensor.detach().clone(), grad)
        state["memory"][name] = tensor.data_ptr()
    state["random"] = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # noqa: NPY002
    state["grad_enabled"] = torch.is_grad_enabled()
    return state


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return [(key, id(part), _copied(part)) for key, part in value.items()]
    return [(id(part), _copied(part)) for part in value] if isinstance(value, list) else None


def same_values(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same_values(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@contextmanager
def unchanged(model: nn.Module, ignoring: str = "") -> Iterator[None]:
    """All of the model is the same after the block, also after an error; without the part `ignoring` of its state."""
    before = state_of(model)
    before.pop(ignoring, None)
    try:
        yield
    finally:
        after = state_of(model)
        for part in before:
            assert same_values(before[part], after[part]), part
