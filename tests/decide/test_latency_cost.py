"""Measured time as cost, with layers whose time a test decides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.decide.amounts import Cutter, amounts
from prunus.decide.candidates import WidthLimits, candidates
from prunus.decide.costs import cost_function
from prunus.decide.costs.latency import table_cost
from prunus.decide.sensitivity import sensitivity
from prunus.timing import turns
from tests.clock import Clock
from tests.decide.test_algorithm_1 import Mixed
from tests.decide.toys import answered, batches, drawn, random_scores, seeded, without_weakest
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
    monkeypatch.setattr(turns, "time", CLOCK)
    monkeypatch.setattr("prunus.timing.layer_timing.processor_time", lambda device, threads: False)
    graph = sc.trace(seeded(Stepped), EXAMPLE)
    cost = cost_function(graph, "latency")
    (name,) = [n for n, u in graph.units.items() if [r.module for r in u.readers] == ["last"]]
    lost = [cost({}) - cost({name: list(range(n))}) for n in (16, 8, 4)]
    assert lost == pytest.approx([2e-3, 4e-3, 4e-3], rel=1e-3)
    found = amounts(Cutter(graph, random_scores(graph, 0), WidthLimits(8)), [name], alpha=8, cost=cost)
    assert found[name].floss == pytest.approx(2e-3 / 8, rel=1e-3)
    assert found[name].channels == 8


def test_what_costs_nothing_at_first_still_counts() -> None:
    """One channel saves nothing, half of them do: FLOSS is theirs. Where all are alike, it is Eqn. 2's."""
    graph = sc.trace(seeded(Stepped), EXAMPLE)
    scores = random_scores(graph, 0)
    (name,) = [n for n, u in graph.units.items() if [r.module for r in u.readers] == ["last"]]
    steps = amounts(
        Cutter(graph, scores),
        [name],
        alpha=1,
        cost=lambda keep: 12.0 * -(-len(keep.get(name, range(24))) // 12),
    )
    assert steps[name].floss == 1.0  # 24 -> 12 channels saves 12
    even = amounts(Cutter(graph, scores), [name], alpha=1, cost=lambda keep: 0.1 * len(keep.get(name, range(24))))
    assert even[name].floss == pytest.approx(0.1)


@pytest.mark.timing
def test_latency_as_cost() -> None:
    model = seeded(Mixed, 0)
    inputs = drawn(EXAMPLE, 20, 0)
    graph = sc.trace(model, EXAMPLE)
    scores, pairs = random_scores(graph, 0), batches(inputs, answered(model, inputs), 25)
    cost = cost_function(graph, "latency")
    keep: dict[str, list[int]] = {}
    seconds = [cost(keep)]
    for name in candidates(graph):  # less and less is left
        unit = graph.units[name]
        keep[name] = without_weakest(unit, scores.values[name], unit.width // 2 // unit.granule * unit.granule)
        seconds.append(cost(keep))
    assert 0 < seconds[-1] < seconds[0]
    found = sensitivity(graph, scores, pairs, cost="latency", exact=True)
    assert found.cost == "latency" and all(row.floss > 0 for row in found.tried.values())
    assert model.training is False


@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_what_is_not_a_layer_counts_at_the_layers_that_write_it(streams: str) -> None:
    """So the sum over layers, which splits minimise, is the predicted time of the network."""
    graph = small_graph(streams)
    table = made_up(graph, 10.0)
    cost = table_cost(graph, table)
    for keep in ({}, *({name: range(2)} for name in graph.units)):
        layers = graph.cost(keep).layers
        parts = [float(cost.layer(name, layers[name].inputs, layers[name].outputs)) for name in table.times]
        assert sum(parts) == pytest.approx(table.predict(graph, keep))
