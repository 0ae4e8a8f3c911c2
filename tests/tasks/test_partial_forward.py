"""What is not computed again makes no difference: staged evaluation against the model itself under `pr.zeroed`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

import prunus as pr
from prunus.tasks import partial_forward as staged_module
from prunus.tasks.partial_forward import PartialForward
from prunus.zoo.models import create
from tests.deciding.toys import drawn, seeded
from tests.nets import NETS, Tiny, conv, pooled
from tests.proof import call, random_keep


class Block(nn.Module):
    """stem -> (conv1, conv2) -> joined with the stem's output -> fc; the joining is the test's."""

    def __init__(self, join: Callable[..., Tensor], activation: Callable[..., Tensor] = F.relu) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2, self.fc = conv(3, 4), conv(4, 6), conv(6, 4), nn.Linear(4, 5)
        self.bn, self.relu, self.hold = nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Identity()
        self.join, self.activation = join, activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.stem(x))
        return self.fc(pooled(self.join(self, x, self.conv2(self.activation(self.conv1(x))))))


JOINS: list[Callable[..., Tensor]] = []


def join(way: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One of the ways to join two branches that are tested."""
    JOINS.append(way)
    return way


@join
def iadd(net: Block, x: Tensor, y: Tensor) -> Tensor:
    x += y
    return x


@join
def add_method(net: Block, x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y).relu_()


@join
def add_method_result_dropped(net: Block, x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return F.relu(x)


@join
def relu_in_place_and_its_input_used_later(net: Block, x: Tensor, y: Tensor) -> Tensor:
    y = net.relu(x) + y
    return y + x  # x is what the activation left in it


@join
def identity_shares_what_is_overwritten(net: Block, x: Tensor, y: Tensor) -> Tensor:
    return net.hold(x).relu_() + y + x


@join
def view_is_overwritten(net: Block, x: Tensor, y: Tensor) -> Tensor:
    x[:, :, :4].add_(y[:, :, 4:])
    return x + y


@join
def out_argument(net: Block, x: Tensor, y: Tensor) -> Tensor:
    torch.add(x, y, out=x)
    return x


@join
def function_with_underscore(net: Block, x: Tensor, y: Tensor) -> Tensor:
    return torch.relu_(x) * 0.5 + F.leaky_relu_(y)


@join
def power_in_place(net: Block, x: Tensor, y: Tensor) -> Tensor:
    y **= 2
    x *= y
    x /= y + 1.0
    x -= y
    return x


class InPlaceFront(nn.Module):
    """The stem's output is overwritten by an activation module, as in torchvision's networks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv(3, 6), nn.ReLU6(inplace=True), conv(6, 8), nn.BatchNorm2d(8), nn.SiLU(inplace=True), conv(8, 4)
        )
        self.drop, self.fc = nn.Dropout(0.5, inplace=True), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(pooled(F.relu(self.layers(x), inplace=True))))


class CalledTwice(nn.Module):
    """One convolution at work at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.twice, self.fc = conv(3, 6), conv(6, 4), conv(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(F.relu(self.a(x)))
        return self.fc(pooled(self.twice(F.relu(self.twice(F.relu(x))))))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc, self.aux = conv(3, 4), conv(4, 6), nn.Linear(6, 5), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.a(x))
        return {"aux": self.aux(pooled(x)), "logits": self.fc(pooled(F.relu(self.b(x))))}


class WithOptions(nn.Module):
    """Arguments that the example leaves at their defaults."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 4), conv(4, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor, slope: float = 0.3, mask: Tensor | None = None) -> Tensor:
        x = F.leaky_relu(self.a(x), slope) * torch.tensor([0.7])  # part of the graph, and not of the model
        return self.fc(pooled(F.relu(self.b(x if mask is None else x * mask))))


ODD = {
    "in_place_front": InPlaceFront,
    "called_twice": CalledTwice,
    "two_heads": TwoHeads,
    "with_options": WithOptions,
    **{way.__name__: (lambda way=way: Block(way)) for way in JOINS},
    "in_place_inside": lambda: Block(iadd, lambda y: F.hardswish(y, inplace=True)),
}
CASES: dict[str, Tiny | Callable[[], nn.Module]] = {**NETS, **ODD}
USED_AGAIN = {  # here the order of calls matters, and the model itself must run
    "add_method_result_dropped",
    "relu_in_place_and_its_input_used_later",
    "identity_shares_what_is_overwritten",
    "view_is_overwritten",
    "out_argument",
}


def logits(output: Any) -> Tensor:
    return output["logits"] if isinstance(output, dict) else output


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_unit_on_batches_of_other_sizes_than_the_example(name: str) -> None:
    case = CASES[name]
    build, example = (case.build, case.example()) if isinstance(case, Tiny) else (case, torch.zeros(1, 3, 8, 8))
    model = seeded(build).double()
    example = drawn(example, 1) if isinstance(example, tuple | dict) else example.double()
    example = tree_map(lambda x: x.double(), example)
    graph = pr.trace(model, example)
    assert graph.units, "nothing to test"
    before = copy.deepcopy(model.state_dict())
    inplace = [getattr(module, "inplace", None) for module in model.modules()]
    staged = PartialForward(graph)
    for number, size in enumerate((5, 2)):
        images = drawn(example, size, seed=number)
        given = copy.deepcopy(images)
        if number == 0:
            assert staged.agrees(images) == (name not in USED_AGAIN)
        torch.testing.assert_close(staged.whole(images), logits(call(model, copy.deepcopy(given))))
        keep = random_keep(graph, seed=number)
        for _ in range(2):  # nothing that is kept may have been overwritten in the first turn
            for unit, kept in keep.items():
                got = staged.without(unit, kept)
                with pr.zeroed(graph, {unit: kept}):
                    want = logits(call(model, copy.deepcopy(given)))
                torch.testing.assert_close(got, want, msg=lambda m: f"{name}, {unit}: {m}")  # noqa: B023
        assert all(map(torch.equal, tree_leaves(images), tree_leaves(given)))
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert inplace == [getattr(module, "inplace", None) for module in model.modules()]


@torch.no_grad()
def test_nothing_in_front_of_a_change_runs_again() -> None:
    model = seeded(lambda: create("resnet20", num_classes=10))
    graph = pr.trace(model, torch.zeros(1, 3, 32, 32))
    images = drawn(torch.zeros(1, 3, 32, 32), 2)
    calls: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    staged = PartialForward(graph)
    assert staged.agrees(images)
    calls.clear()
    staged.whole(images)
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert calls == layers and len(layers) == 20
    for unit, first in {"layer1.0.conv1:in": 1, "layer2.1.conv1:out": 10, "layer3.2.conv1:out": 18}.items():
        calls.clear()
        staged.without(unit, [0, 1, 2])
        assert calls == layers[first:]


@torch.no_grad()
def test_only_what_is_needed_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chain: what enters b (4 channels of 8x8) and what enters fc (6 values), 4 bytes each."""
    graph = pr.trace(seeded(NETS["chain"].build), torch.zeros(2, 3, 8, 8))
    monkeypatch.setattr(staged_module, "KEPT_BYTES", 10_000)
    staged = PartialForward(graph)
    assert staged.at_once == 10_000 // (4 * 64 * 4 + 6 * 4) == 9
    images = drawn(torch.zeros(1, 3, 8, 8), 3)
    staged.agrees(images)
    staged.whole(images)
    shapes = sorted(tuple(v.shape) for v in staged._values.values() if isinstance(v, Tensor))
    assert shapes == [(3, 4, 8, 8), (3, 6)]


@torch.no_grad()
def test_where_the_trace_does_not_fit_the_model_runs() -> None:
    class Fixed(nn.Module):
        """Traced on one image, `reshape(1, ...)` cannot run on five."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.conv1, self.fc, self.rows = conv(3, 4), conv(4, 6), nn.Linear(6, 5), 1

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.a(x)).reshape(self.rows, 4, 8, 8)
            return self.fc(pooled(self.conv1(x)))

    def clamp(net: Block, x: Tensor, y: Tensor) -> Tensor:
        x.clamp_(max=5.0)  # of small values it changes nothing: the first batch cannot tell, the calls can
        return x + y

    for model in (seeded(Fixed), seeded(lambda: Block(clamp))):
        graph = pr.trace(model, torch.zeros(1, 3, 8, 8))
        small = drawn(torch.zeros(1, 3, 8, 8), 5) * 0.1
        if isinstance(model, Fixed):
            model.rows = 5
        staged = PartialForward(graph)
        assert not staged.agrees(small)
        large = small * 1000
        torch.testing.assert_close(staged.whole(large), model(large.clone()))
        unit = "conv1:out"
        with pr.zeroed(graph, {unit: [1, 3]}):
            want = model(large.clone())
        torch.testing.assert_close(staged.without(unit, [1, 3]), want)
