"""Measured time as cost: the table of layer timings, what selecting costs, and decisions by it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.deciding import latency_table
from secateur.deciding.amounts import amounts
from secateur.deciding.budget import Cutter
from secateur.deciding.candidates import candidates
from secateur.deciding.latency_table import layer_time, layer_times, levels, measured_cost
from secateur.deciding.sensitivity import sensitivity
from secateur.deciding.widths import WidthLimits
from tests.clock import Clock
from tests.deciding.test_algorithm_1 import Mixed
from tests.deciding.toys import answered, batches, drawn, random_scores, seeded, without_weakest
from tests.nets import NETS

EXAMPLE = torch.zeros(1, 3, 8, 8)
CLOCK = Clock(tick=1e-9)


def test_widths_that_are_timed() -> None:
    """Multiples of 8 and half a step below; eighths of wide layers; halves of very narrow ones."""
    assert levels(16) == [4, 8, 16]
    assert levels(64) == [4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert levels(512) == [32, 64, 128, 192, 256, 320, 384, 448, 512]
    assert levels(20) == [4, 8, 10, 16, 20]
    assert levels(3) == [1, 3] and levels(1) == [1]


def test_between_timed_widths_time_is_linear() -> None:
    seconds = np.array([[1.0, 2.0, 6.0], [3.0, 4.0, 8.0]])
    found = layer_time([8, 16], [4, 8, 16], seconds, [0.5, 0.7])
    assert [found.at(8, 4), found.at(16, 16), found.at(16, 12)] == [1.0, 8.0, 6.0]
    assert found.at(12, 8) == 3.0 and found.at(12, 12) == pytest.approx((2 + 6 + 4 + 8) / 4)
    assert found.at(2, 1) == 1.0  # narrower than any that was timed
    # Selecting 8 of 16 takes half a second; reading all 16 selects nothing.
    assert found.at(8, 4, selects=True) == 1.5 and found.at(16, 4, selects=True) == 3.0
    assert found.at(12, 4, selects=True) == (1.5 + 3.0) / 2


def test_narrower_never_takes_longer() -> None:
    noisy = np.array([[1.0, 5.0], [4.0, 3.0]])
    found = layer_time([8, 16], [8, 16], noisy, [9.0, 9.0])
    assert found.seconds.tolist() == [[1.0, 3.0], [3.0, 3.0]]
    assert found.selecting.tolist() == [[3.0, 3.0], [3.0, 3.0]]  # a selection that does not pay saves nothing


@pytest.mark.parametrize(
    "name", ["grouped", "depthwise", "transposed", "flattened", "channels_last", "sound", "volume"]
)
def test_every_kind_of_layer_is_timed(name: str) -> None:
    graph = sc.trace(seeded(NETS[name].build), NETS[name].example())
    table = layer_times(graph, batch=4, rounds=1)
    assert set(table) == set(graph.layers)
    for layer, found in table.items():
        whole = graph.layers[layer]
        assert (found.inputs[-1], found.outputs[-1]) == (whole.inputs, whole.outputs)
        assert found.seconds.shape == (len(found.inputs), len(found.outputs)) and found.seconds.min() > 0


class Stairs(nn.Conv2d):
    """Takes two milliseconds of the test's clock for every eight inputs that it reads, or part of eight."""

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.sleep(2e-3 * -(-x.size(1) // 8))
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


def test_steps_of_the_kernels_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 inputs cost 6 ms, 16 cost 4, 8 and fewer 2; layers that are alike are timed once."""
    monkeypatch.setattr(latency_table, "time", CLOCK)
    calls = []
    whole = latency_table._time
    monkeypatch.setattr(latency_table, "_time", lambda *args: calls.append(1) or whole(*args))
    graph = sc.trace(seeded(Stepped), EXAMPLE)
    cost = measured_cost(graph, batch=2, rounds=5)
    assert len(calls) == 3  # the stem, the three convolutions, the classifier
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
    cost = measured_cost(graph, batch=8, rounds=3)
    keep: dict[str, list[int]] = {}
    seconds = [cost(keep)]
    for name in candidates(graph):  # less and less is left
        unit = graph.units[name]
        keep[name] = without_weakest(unit, scores.values[name], unit.width // 2 // unit.granule * unit.granule)
        seconds.append(cost(keep))
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(seconds))
    assert 0 < seconds[-1] < seconds[0]
    found = sensitivity(graph, scores, pairs, cost="latency", exact=True)
    assert found.cost == "latency" and all(row.saved >= 0 and row.floss > 0 for row in found.tried.values())
    assert model.training is False
