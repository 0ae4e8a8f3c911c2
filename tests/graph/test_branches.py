"""Residual branches that are removed whole: which ones can be, and that nothing else of the network changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.errors import PlanError
from prunus.graph.branches import Absent, plain_network
from prunus.graph.record import trace_calls
from prunus.timing.onnx_export import export_onnx, exported

IMAGE = torch.zeros(1, 3, 8, 8)


class Basic(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x)))))), in place as in torchvision if asked."""

    def __init__(self, width: int, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=in_place)

    def branch(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        out = self.branch(x)
        if self.in_place:
            out += x
        else:
            out = out + x
        return self.relu(out)


class Bottleneck(nn.Module):
    """A projection in the shortcut, a linear bottleneck and a gate in the branch; the code adds in the other order."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.expand, self.bn = nn.Conv2d(width, 12, 1), nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, stride, 1, groups=12)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.project = nn.Conv2d(12, out, 1)
        self.shortcut = nn.Conv2d(width, out, 1, stride)
        self.scale = nn.Parameter(torch.rand(out, 1, 1) + 0.5)

    def branch(self, x: Tensor) -> Tensor:
        y = F.relu6(self.depthwise(F.silu(self.bn(self.expand(x)))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return self.scale * self.project(y * gate)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


class Net(nn.Module):
    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a, self.b = Basic(8, in_place), Basic(8, in_place)
        self.c = Bottleneck(8, 16, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.c(self.b(self.a(F.relu(self.stem(x))))).mean((2, 3)))


def made(in_place: bool = False) -> Net:
    torch.manual_seed(0)
    net = Net(in_place)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.running_mean.uniform_(-0.5, 0.5)
    return net


def by_hand(net: Net, x: Tensor, a: bool, b: bool, c: bool) -> Tensor:
    """What the network computes without some of its branches, written down without any pruning."""
    x = F.relu(net.stem(x))
    x = F.relu(x + net.a.branch(x)) if a else x
    x = F.relu(x + net.b.branch(x)) if b else x
    x = net.c.shortcut(x) + net.c.branch(x) if c else net.c.shortcut(x)
    return net.head(x.mean((2, 3)))


UNITS = ("a.conv1:out", "b.conv1:out", "c.expand:out")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kept", [(False, True, True), (True, False, False), (False, False, False)])
def test_a_removed_branch_adds_nothing(in_place: bool, training: bool, kept: tuple[bool, bool, bool]) -> None:
    net = made(in_place).train(training)
    graph = pr.trace(net, IMAGE)
    assert {name for name, unit in graph.units.items() if unit.can_vanish} == {*UNITS}
    plan = pr.Plan.of(graph, {name: () for name, stays in zip(UNITS, kept, strict=True) if not stays})
    small = pr.prune(graph, plan)
    x = torch.randn(4, 3, 8, 8)
    want = by_hand(made().train(training), x, *kept)
    torch.testing.assert_close(small(x), want)
    gone = [f"{block}." for block, stays in zip("abc", kept, strict=True) if not stays]
    left = [name for name, _ in net.named_parameters() if not name.startswith(tuple(gone)) or "shortcut" in name]
    scales = ["c.scale"] if "c.scale" not in left else []  # a parameter of the block itself
    assert sorted(name for name, _ in small.named_parameters()) == sorted(left + scales)


def test_cost_is_that_of_the_layers_that_are_left() -> None:
    graph = pr.trace(made(), IMAGE)
    keep = {"a.conv1:out": (), "c.expand:out": ()}
    stem, convolution, shortcut, head = 27 * 8 * 64, 72 * 8 * 64, 8 * 16 * 16, 16 * 5
    assert graph.cost(keep).macs == stem + 2 * convolution + shortcut + head
    assert graph.cost(keep).params == 27 * 8 + 2 * 72 * 8 + 8 * 16 + 16 * 5
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    assert pr.trace(small, IMAGE).macs == graph.cost(keep).macs


def test_branch_and_channels_go_together() -> None:
    net = made()
    graph = pr.trace(net, IMAGE)
    keep = {"a.conv1:out": (), "b.conv1:out": (1, 3, 4), "b.conv1:in": (0, 2, 7), "c.shortcut:in": (2, 3)}
    small = pr.prune(graph, pr.Plan.of(graph, keep))  # compared with the zeroed network
    assert small.b.conv1.weight.shape == (3, 3, 3, 3)
    assert isinstance(small.a.conv2, Absent)


def test_pruned_again_and_saved(tmp_path: Path) -> None:
    net, x = made().eval(), torch.randn(2, 3, 8, 8)
    graph = pr.trace(net, IMAGE)
    first = pr.Plan.of(graph, {"b.conv1:out": (), "a.conv1:out": (0, 5)})
    small = pr.prune(graph, first)
    again = pr.trace(small, IMAGE)
    assert "b.conv1:out" not in again.units
    second = pr.Plan.of(again, {"a.conv1:out": ()})
    smallest = pr.prune(again, second)
    both = first.then(second)
    assert both.keep["a.conv1:out"] == both.keep["b.conv1:out"] == ()
    pr.save(smallest, both, tmp_path)
    loaded = pr.load(tmp_path, made()).eval()
    torch.testing.assert_close(loaded(x), by_hand(net, x, False, False, True))
    assert pr.Plan.from_json(both.to_json()) == both


@pytest.mark.parametrize("in_place", [False, True])
def test_exported_graph_has_no_trace_of_the_branch(in_place: bool, tmp_path: Path) -> None:
    import onnx

    net, x = made(in_place).eval(), torch.randn(2, 3, 8, 8)
    graph = pr.trace(net, IMAGE)
    small = pr.prune(graph, pr.Plan.of(graph, dict.fromkeys(UNITS, ())))
    contents = [exported(small, IMAGE)]
    if in_place:  # the exporter for files to keep is slow
        export_onnx(small, IMAGE, tmp_path / "small.onnx")  # compares it with PyTorch
        contents.append((tmp_path / "small.onnx").read_bytes())
    for content in contents:
        file = onnx.load_from_string(content)
        kinds = [node.op_type for node in file.graph.node]
        assert kinds.count("Conv") == 2  # stem and shortcut
        assert not {"Add", "ConstantOfShape", "Expand", "Shape"} & {*kinds}
        assert kinds.count("Relu") == 1
        assert all(0 not in tensor.dims for tensor in file.graph.initializer)
    plain = plain_network(trace_calls(small, IMAGE))
    torch.testing.assert_close(plain(x), by_hand(net, x, False, False, False))


def test_activations_in_place_do_not_write_into_the_shortcut() -> None:
    class Linear(nn.Module):
        """The stream has no activation of its own, and the sum is followed by one that works in place."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.one, self.two = (nn.Conv2d(3, 3, 1) for _ in range(3))
            self.act = nn.SiLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            y = self.two(self.act(self.one(x)))
            y = self.act(y + x)
            return (y * x).mean((2, 3))

    net, x = Linear().eval(), torch.randn(2, 3, 4, 4)
    graph = pr.trace(net, torch.zeros(1, 3, 4, 4))
    assert graph.units["one:out"].can_vanish
    small = pr.prune(graph, pr.Plan.of(graph, {"one:out": ()}))
    y = net.stem(x)
    want = (F.silu(y) * y).mean((2, 3))
    torch.testing.assert_close(small(x), want)
    torch.testing.assert_close(plain_network(trace_calls(small, x))(x), want)


def test_units_that_cannot_vanish() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 6, 1)
            self.a1, self.a2, self.b1, self.b2 = (nn.Conv2d(6, 6, 1) for _ in range(4))
            self.c1, self.c2, self.d1, self.d2 = (nn.Conv2d(6, 6, 1) for _ in range(4))
            self.head = nn.Conv2d(6, 6, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.stem(x)
            x = self.a2(F.relu(self.a1(x))) + self.b2(F.relu(self.b1(x)))  # nothing would be left if both went
            y = F.relu(self.c1(x))
            x = x + self.c2(y)
            z = x + torch.sigmoid(self.d2(F.relu(self.d1(x))))  # zeros in front of the sigmoid are no zeros behind it
            return self.head(z), y  # y is used outside of its branch

    graph = pr.trace(Odd(), torch.zeros(1, 3, 4, 4))
    assert not any(unit.can_vanish for unit in graph.units.values())
    with pytest.raises(PlanError, match="'d1:out' would keep none of its 6 channels"):
        pr.Plan.of(graph, {"d1:out": ()})
