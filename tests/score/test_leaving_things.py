"""Nothing of the caller's is changed: mode, hooks, requires_grad, gradients, generators, images; on errors too."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.score.score import score
from tests import nets
from tests.score.toys import batches, settled

METRICS = ["gsd", "di", "fisher"]  # one for each kind of pass


def prepared() -> sc.ChannelGraph:
    model = settled(nets.Residual())
    graph = sc.trace(model, torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    model.train()
    model.get_submodule("bn1").eval()
    model.get_submodule("conv1").weight.requires_grad_(False)
    model.get_submodule("fc").weight.grad = torch.ones_like(model.get_submodule("fc").weight)
    return graph


def snapshot(model: nn.Module) -> list[Any]:
    return [
        [(name, module.training) for name, module in model.named_modules()],
        [(name, p.requires_grad, None if p.grad is None else p.grad.clone()) for name, p in model.named_parameters()],
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [(name, dict(m._forward_pre_hooks), dict(m._forward_hooks)) for name, m in model.named_modules()],
        [torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()],  # noqa: NPY002
    ]


def same_values(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same_values(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_values(a[k], b[k]) for k in a)
    return bool(a == b)


@pytest.mark.parametrize("tap", ["reader", "before_activation"])
@pytest.mark.parametrize("metric", METRICS)
def test_after_a_pass_everything_is_as_found(metric: str, tap: Any) -> None:
    graph = prepared()
    mine: list[int] = []
    graph.model.get_submodule("conv2").register_forward_pre_hook(lambda *_: mine.append(1))
    before, images = snapshot(graph.model), batches()
    copies = [(x.clone(), y.clone()) for x, y in images]
    score(graph, images, metric, tap=tap)
    assert same_values(snapshot(graph.model), before)
    assert same_values(images, copies)
    assert not any(x.requires_grad for x, _ in images)
    assert mine  # the caller's hook was called all along
    assert torch.is_grad_enabled()


def failing() -> Iterator[tuple[Tensor, Tensor]]:
    yield from batches()[:2]
    raise RuntimeError("the disk is on fire")


class Failing:
    """Fails in the middle, every time it is read."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return failing()


@pytest.mark.parametrize("tap", ["reader", "before_activation"])
@pytest.mark.parametrize("metric", METRICS)
def test_after_an_error_everything_is_as_found(metric: str, tap: Any) -> None:
    graph = prepared()
    before = snapshot(graph.model)
    with pytest.raises(RuntimeError, match="the disk is on fire"):
        score(graph, Failing(), metric, tap=tap)
    assert same_values(snapshot(graph.model), before)


@pytest.mark.parametrize("metric", METRICS)
def test_after_an_error_in_the_network_everything_is_as_found(metric: str) -> None:
    graph = prepared()
    before = snapshot(graph.model)
    wrong = [(torch.zeros(4, 2, 8, 8, dtype=torch.float64), torch.arange(4) % 2)]
    with pytest.raises(RuntimeError):
        score(graph, wrong, metric, num_map_images=None)
    assert same_values(snapshot(graph.model), before)


def test_inside_inference_mode() -> None:
    graph = prepared()
    plain = score(graph, batches()).values["conv1:out"]
    with torch.inference_mode():
        inside = score(graph, batches()).values["conv1:out"]
    np.testing.assert_array_equal(plain, inside)
