"""The memory of activations: by hand, beside torch's profiler, and under plans beside the pruned network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import prunus as pr
from prunus.zoo.models import create
from tests import nets, proof


def profiled(model: nn.Module, x: Tensor) -> int:
    """Peak of the bytes that outlive the operation which allocates them, by torch's profiler: what a kernel takes and
    gives back inside one operation depends on the machine."""
    with torch.no_grad():
        model(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            kept = model(x)
    del kept
    roots: Any = profile.profiler.kineto_results.experimental_event_tree()
    events: list[tuple[int, int, int, int]] = []  # time, bytes, pointer, operation

    def walk(event: Any, top: int) -> None:
        fields = event.extra_fields
        if hasattr(fields, "alloc_size"):
            events.append((event.start_time_ns, fields.alloc_size, fields.ptr, top))
        for child in event.children:
            walk(child, top)

    for number, root in enumerate(roots):
        walk(root, number)
    events.sort()
    born: dict[int, int] = {}  # pointer -> place of its allocation
    inside: set[int] = set()
    for place, (_, size, pointer, top) in enumerate(events):
        if size > 0:
            born[pointer] = place
        elif pointer in born:
            start = born.pop(pointer)
            if events[start][3] == top:
                inside |= {start, place}
    now = peak = 0
    for place, (_, size, _, _) in enumerate(events):
        now += 0 if place in inside else size
        peak = max(peak, now)
    return peak


def calls_of(model: nn.Module, graph: pr.ChannelGraph) -> nn.Module:
    """The network as its calls alone, without variables that Python code keeps longer than it reads them."""
    return fx.GraphModule(model, graph.analysis.traced.graph).eval()


def without_input(graph: pr.ChannelGraph) -> float:
    """The peak without the network's input, which the profiler has not seen being allocated."""
    memory = graph.memory
    return float((memory.alive[:, 1:] @ memory.sizes({})[1:]).max())


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet5", (1, 32, 32)), ("resnet8", (3, 32, 32)), ("vgg16", (3, 32, 32)), ("preresnet20", (3, 32, 32))],
)
def test_the_peak_is_that_of_torchs_profiler(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = create(name).eval(), torch.randn(1, *shape)
    graph = pr.trace(model, x)
    assert without_input(graph) == pytest.approx(profiled(calls_of(model, graph), x), rel=0.1)
    small = pr.prune(graph, pr.Plan.of(graph, proof.random_keep(graph, 0))).eval()
    smaller = pr.trace(small, x)
    assert without_input(smaller) == pytest.approx(profiled(calls_of(small, smaller), x), rel=0.1)


class Fork(nn.Module):
    """conv a [8, 8, 8] -> relu in place -> conv b [4, 8, 8], whose result is concatenated with a's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu_(self.a(x))
        return self.head(torch.cat([a, self.b(a)], 1))  # type: ignore[no-any-return]


def test_the_peak_by_hand() -> None:
    graph = pr.trace(Fork(), torch.zeros(2, 3, 8, 8))
    pixel = 8 * 8 * 4  # bytes of one channel of one image
    # At cat: a (8 channels), b (4) and the result (12). The relu writes into a.
    assert graph.memory.peak() == (8 + 4 + 12) * pixel and graph.memory.where() == "cat"
    names = {unit.width: name for name, unit in graph.units.items()}
    keep = {names[8]: (0, 1, 2)}
    assert graph.memory.peak(keep) == (3 + 4 + 3 + 4) * pixel
    keep[names[4]] = (0,)
    assert graph.memory.peak(keep) == (3 + 1 + 3 + 1) * pixel


@pytest.mark.parametrize("streams", ["select", "coupled"])
@pytest.mark.parametrize(
    "make", [nets.Chain, nets.Residual, nets.PreActivation, nets.SqueezeExcite, nets.Dense, nets.Depthwise]
)
def test_a_plan_is_worth_what_the_pruned_network_takes(make: Any, streams: Any) -> None:
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(1, 3, 16, 16)
    graph = pr.trace(model, x, streams)
    for seed in range(3):
        keep = proof.random_keep(graph, seed)
        small = pr.prune(graph, pr.Plan.of(graph, keep)).eval()
        assert graph.memory.peak(keep) == pytest.approx(pr.trace(small, x).memory.peak(), rel=0.1)
