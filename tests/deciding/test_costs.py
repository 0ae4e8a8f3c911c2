"""Costs by name: measured time, with layers whose time a test decides, and costs that a user registers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.deciding.costs import COSTS, CostEntry, cost_function, table_cost
from prunus.deciding.sensitivity import sensitivity
from prunus.deciding.splits import decide
from prunus.deciding.widths import Cutter, WidthLimits, amounts
from prunus.errors import DecideError
from prunus.run.settings import Settings, check_settings
from prunus.scoring.scores import Scores
from prunus.timing import latency as stopwatch
from tests import nets
from tests.clock import Clock
from tests.deciding.toys import mixed, random_scores, seeded
from tests.timing.test_latency_table import made_up, small_graph

EXAMPLE = torch.zeros(1, 3, 8, 8)
CLOCK = Clock(tick=1e-9)


class Stairs(nn.Conv2d):
    """Takes two milliseconds of the test's clock for every eight inputs that it reads, or part of eight."""

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.sleep(2e-3 * -(-x.size(1) // 8) * len(x) / 64)
        return super().forward(x)


class Stepped(nn.Module):
    """Two alike: what the first block reads is a stream, what lies between the second's layers is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 1)
        self.first, self.inner, self.last = Stairs(24, 24, 1), Stairs(24, 24, 1), Stairs(24, 24, 1)
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.first(x)
        return self.fc((x + self.last(self.inner(x).relu())).mean((2, 3)))


def test_steps_of_the_kernels_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """24 inputs cost 6 ms, 16 cost 4, 8 and fewer 2."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # times by this clock are of no use to others
    monkeypatch.setattr(stopwatch, "time", CLOCK)
    monkeypatch.setattr("prunus.timing.layer_timing.processor_time", lambda device, threads: False)
    graph = pr.trace(seeded(Stepped), EXAMPLE)
    cost = cost_function(graph, "latency")
    (name,) = [n for n, u in graph.units.items() if [r.module for r in u.readers] == ["last"]]
    lost = [cost({}) - cost({name: list(range(n))}) for n in (16, 8, 4)]
    assert lost == pytest.approx([2e-3, 4e-3, 4e-3], rel=1e-3)
    found = amounts(Cutter(graph, random_scores(graph, 0), WidthLimits(8)), [name], alpha=8, cost=cost)
    assert found[name].floss == pytest.approx(2e-3 / 8, rel=1e-3)
    assert found[name].channels == 8


@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_what_is_not_a_layer_counts_at_the_layers_that_write_it(streams: str) -> None:
    """So the sum over layers, which splits minimise, is the predicted time of the network."""
    graph = small_graph(streams)
    table = made_up(graph, 10.0)
    cost = table_cost(graph, table)
    for keep in ({}, *({name: range(2)} for name in graph.units)):
        layers = graph.cost(keep).layers
        parts = [float(cost.layer(name, layers[name].inputs, layers[name].outputs)) for name in table.layers]
        assert sum(parts) == pytest.approx(table.predict(graph, keep))


def test_a_cost_that_a_user_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    def channel_count(graph: pr.ChannelGraph) -> object:
        return lambda keep: float(sum(len(keep.get(name, range(unit.width))) for name, unit in graph.units.items()))

    monkeypatch.setattr(COSTS, "_registered", {})
    COSTS.register(CostEntry(name="channels", help="Number of channels that are kept", of=channel_count))  # type: ignore[arg-type]
    assert list(COSTS) == ["channels", "latency", "macs", "memory", "params"]
    check_settings(Settings(target=0.5, cost="channels"))
    graph = pr.trace(nets.Residual().eval(), torch.zeros(1, 3, 8, 8))  # conv1:in 4, conv1:out 6, fc:in 4
    scores = Scores("rising", {name: np.arange(unit.width, dtype=float) for name, unit in graph.units.items()})
    batch = [(torch.randn(6, 3, 8, 8), torch.zeros(6, dtype=torch.long))]
    found = pr.sensitivity(graph, scores, batch, cost="channels", alpha=2, exact=True)
    assert found.cost == "channels"
    rows = {name: (row.channels, row.saved) for name, row in found.tried.items()}
    assert rows == {"conv1:in": (2, 2.0), "conv1:out": (2, 2.0)}


def test_listing_the_registries_does_not_import_torch() -> None:
    """`prunus --help` lists them."""
    program = (
        "import sys; from prunus.deciding.settings import SPLITS; from prunus.deciding.costs import COSTS; "
        "from prunus.repairing.repair import REPAIRS; from prunus.timing.engines import ENGINES; "
        "print([r.help(n) for r in (SPLITS, COSTS, REPAIRS, ENGINES) for n in r] and 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("cost", "complaint"),
    [
        (3, "a cost is one of latency, macs, memory, params, or a function of kept channels .* got int"),
        (None, "got NoneType"),
        (lambda: 1.0, "your cost <lambda> is called with the kept channels, but: too many positional arguments"),
        (lambda keep: None, "your cost <lambda> must return a finite number for kept channels, and returned NoneType"),
        (lambda keep: float("nan"), "and returned nan"),
        (lambda keep: True, "and returned True"),
        (CostEntry(name="one", of=lambda graph: 1.0), "must return one for a graph, and returned float"),  # type: ignore
        ("mac", "there is no cost called 'mac': did you mean macs"),
    ],
)
def test_a_wrong_kind_of_cost(cost: Any, complaint: str) -> None:
    graph = small_graph()
    with pytest.raises(DecideError, match=complaint):
        cost_function(graph, cost)({})
    assert cost_function(graph, COSTS["macs"])({}) == graph.macs
    whole: Any = lambda keep: np.int64(7 - len(keep))  # a number of numpy
    assert cost_function(graph, whole)({"a": [1]}) == 6.0


def test_a_wrong_cost_is_refused_by_those_who_count() -> None:
    _, graph, scores, images = mixed()
    nothing: Any = lambda keep: None
    with pytest.raises(DecideError, match="returned NoneType"):
        sensitivity(graph, scores, images, cost=nothing)
    with pytest.raises(DecideError, match="returned NoneType"):
        decide(graph, scores, sensitivity(graph, scores, images, exact=True), target=0.2, cost=nothing)
