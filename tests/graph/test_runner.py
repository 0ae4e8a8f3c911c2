"""The graph runner against the model itself: whole, in parts, with other modules, and on copies."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.graph.runner import GraphRunner, InPlaceError, last_uses
from tests.nets import conv, pooled


class Net(nn.Module):
    """a -> relu -> b -> pooled -> fc, with a constant in the code and a scale that is a parameter of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 4), conv(4, 6), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a(x)) * torch.tensor([2.0]) * self.scale
        return self.fc(pooled(self.b(x)))


def made(build: Any = Net, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build().double().eval()


def runner_of(model: nn.Module, example: Any = None) -> GraphRunner:
    example = torch.zeros(1, 3, 8, 8).double() if example is None else example
    return GraphRunner(pr.trace(model, example).analysis.traced)


def images(count: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


@torch.no_grad()
def test_the_whole_graph_is_the_model() -> None:
    model, x = made(), images()
    runner = runner_of(model)
    values = runner.bind(x)
    got = runner.run(values)
    torch.testing.assert_close(got, model(x), rtol=0, atol=0)
    computed = {node.name for node in values}
    assert computed == {node.name for node in runner.nodes if node.op != "output"}  # everything is kept


@torch.no_grad()
def test_values_are_freed_after_their_last_use() -> None:
    model, x = made(), images()
    runner = runner_of(model)
    first = runner.calls_of({"a"})[0]
    alive: list[bool] = []
    seen: list[weakref.ref[Tensor]] = []
    values = runner.bind(x)
    for _ in runner.steps(values, free=last_uses(runner.nodes)):
        if first in values and not seen:
            seen.append(weakref.ref(values[first]))
        alive += [seen[0]() is not None] if seen else []
    assert alive[0] and not alive[1] and not any(alive[2:])  # relu alone needs what a returns
    assert [n.op for n in values] == ["output"]
    kept = runner.bind(x)
    runner.run(kept, free=last_uses(runner.nodes, kept={first}))
    assert list(kept) == [first]


@torch.no_grad()
def test_a_value_that_no_node_uses_is_freed_at_once() -> None:
    class Unused(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.b(F.relu(self.a(x)))
            return x.sum()

    runner = runner_of(made(Unused))
    unused = runner.calls_of({"b"})[0]
    assert unused in last_uses(runner.nodes)[unused]


@torch.no_grad()
def test_a_suffix_runs_again_on_kept_values() -> None:
    model, x = made(), images()
    runner = runner_of(model)
    values = runner.bind(x)
    runner.run(values)
    before = {node: value.clone() for node, value in values.items() if isinstance(value, Tensor)}
    with torch.no_grad():
        model.b.weight[1] = 0
    calls: list[str] = []
    for name in ("a", "b", "fc"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    behind = runner.dependents(runner.calls_of({"b"}))
    got = runner.run(dict(values), behind, last_uses(behind))
    assert calls == ["b", "fc"]
    torch.testing.assert_close(got, model(x), rtol=0, atol=0)
    assert all(torch.equal(value, values[node]) for node, value in before.items())
    assert runner.run(dict(values), behind[:1]) is None  # the output is not reached


@torch.no_grad()
def test_a_node_computed_by_a_given_function() -> None:
    model, x = made(), images()
    runner = runner_of(model)
    node = runner.calls_of({"b"})[0]
    got = runner.run(runner.bind(x), replaced={node: lambda h: model.b(h) + 1.0})
    model.b.bias = nn.Parameter(torch.ones(6, dtype=torch.double) + (0 if model.b.bias is None else model.b.bias))
    torch.testing.assert_close(got, model(x))


@torch.no_grad()
def test_the_modules_of_another_model() -> None:
    """The same graph runs a pruned network; constants of the code belong to neither model."""
    model, x = made(), images()
    graph = pr.trace(model, torch.zeros(1, 3, 8, 8).double())
    pruned = pr.prune(graph, pr.Plan.of(graph, {"b:out": [0, 2, 5], "a:out": [1, 3]}))
    with torch.no_grad():
        pruned.scale.fill_(3.0)
    assert not hasattr(model, "_tensor_constant0") and not hasattr(pruned, "_tensor_constant0")
    runner = GraphRunner(graph.analysis.traced, pruned)
    torch.testing.assert_close(runner.run(runner.bind(x)), pruned(x), rtol=0, atol=0)
    own = GraphRunner(graph.analysis.traced)
    torch.testing.assert_close(own.run(own.bind(x)), model(x), rtol=0, atol=0)


@torch.no_grad()
def test_a_constant_that_forward_writes_into_is_new_each_time() -> None:
    class Counts(Net):
        def forward(self, x: Tensor) -> Tensor:
            total = torch.tensor([[1.0]]).to(x.dtype)
            return self.fc(pooled(self.b(F.relu(self.a(x))))).add_(total.mul_(x.mean()))

    model, x = made(Counts), images()
    runner = runner_of(model, images(1, seed=5))
    outputs = [runner.run(runner.bind(x)) for _ in range(2)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)


class ManyArguments(nn.Module):
    """Arguments with names that begin alike, constants among them, and one after the star."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 4), conv(4, 6), nn.Linear(6, 5)

    def forward(
        self,
        h: Tensor,
        h_add: Tensor,
        sizes: tuple[float, float] = (2.0, 3.0),
        input: Tensor | None = None,
        *,
        h_mul: float = 1.0,
    ) -> Tensor:
        h = F.relu(self.a(h)) * sizes[0] + h_add * sizes[1]
        return self.fc(pooled(self.b(h if input is None else h * input))) * h_mul


@pytest.mark.parametrize("kind", ["positional", "with constants", "keywords", "all tensors"])
@torch.no_grad()
def test_inputs_by_position_by_name_and_constants(kind: str) -> None:
    model = made(ManyArguments)
    h, add, scale = images(), torch.randn(3, 4, 8, 8).double(), torch.randn(3, 4, 1, 1).double()
    inputs: Any = {
        "positional": (h, add),
        "with constants": (h, add, (5.0, -1.0)),
        "keywords": {"h_mul": 4.0, "h_add": add, "h": h},
        "all tensors": {"input": scale, "h": h, "h_add": add, "sizes": (0.5, 1.0)},
    }[kind]
    want = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    runner = runner_of(model, inputs)
    torch.testing.assert_close(runner.run(runner.bind(inputs)), want, rtol=0, atol=0)
    only = inputs if isinstance(inputs, dict) else inputs[:2]
    only = {k: v for k, v in only.items() if isinstance(v, Tensor)} if isinstance(only, dict) else only
    torch.testing.assert_close(runner.run(runner.bind(only)), want, rtol=0, atol=0)  # constants are the traced ones


@torch.no_grad()
def test_an_input_that_is_missing() -> None:
    runner = runner_of(made(ManyArguments), (images(), torch.zeros(3, 4, 8, 8).double()))
    with pytest.raises(KeyError, match="h_add"):
        runner.bind(images())


@torch.no_grad()
def test_calls_that_work_in_place_run_on_copies() -> None:
    class InPlace(Net):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2.0)
            h = self.a(x).add_(1.0)
            return self.fc(pooled(self.b(F.relu(h, inplace=True))))

    class Dropped(InPlace):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            h.relu_()
            return self.fc(pooled(self.b(h)))

    model, x = made(InPlace), images()
    given = copy.deepcopy(x)
    runner = runner_of(model)
    with pytest.raises(InPlaceError):
        runner.run_in_place_calls_on_copies(x)  # the images themselves are read after they were overwritten
    assert torch.equal(x, given)
    torch.testing.assert_close(runner.run(runner.bind(x, copy=True)), model(x.clone()), rtol=0, atol=0)
    assert torch.equal(x, given)
    with pytest.raises(InPlaceError):
        runner_of(made(Dropped)).run_in_place_calls_on_copies(x)


@torch.no_grad()
def test_kept_values_are_not_overwritten() -> None:
    class InPlace(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).add_(1.0)
            return self.fc(pooled(self.b(F.relu(h, inplace=True))))

    model, x = made(InPlace), images()
    runner = runner_of(model)
    runner.run_in_place_calls_on_copies(x)
    assert sorted(node.name for node in runner.on_copies) == ["add_", "relu"]
    values = runner.bind(x)
    got = runner.run(values)
    torch.testing.assert_close(got, model(x))
    torch.testing.assert_close(values[runner.calls_of({"a"})[0]], model.a(x), rtol=0, atol=0)
