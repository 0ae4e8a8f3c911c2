"""FLOSS, n_l and the chosen units against Algorithm 1 taken literally: every network built, counted and evaluated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prunus as sc
from prunus.decide.amounts import Cutter, amounts
from prunus.decide.candidates import candidates, floor_of
from prunus.decide.costs.macs import macs
from prunus.decide.costs.params import params
from prunus.decide.ranked_plan import decide
from prunus.decide.sensitivity import sensitivity
from prunus.errors import DecideError
from prunus.zoo.models import create
from tests.decide.toys import algorithm_1, answered, batches, drawn, measured, random_scores, seeded, without_weakest
from tests.nets import NETS, conv, pooled
from tests.proof import assert_accuracy, outputs, relative_error


class Mixed(nn.Module):
    """Wide and narrow, large and small maps, a grouped convolution and a skip: FLOSS from 100 to 20,000."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = conv(3, 16), conv(16, 24), conv(24, 16)
        self.down, self.group, self.point = conv(16, 24, stride=2), conv(24, 48, groups=4), conv(48, 20, 1)
        self.bn, self.fc1, self.fc2 = nn.BatchNorm2d(24), nn.Linear(20, 30), nn.Linear(30, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.conv2(torch.relu(self.bn(self.conv1(x)))))
        x = torch.relu(self.point(torch.relu(self.group(torch.relu(self.down(x))))))
        return self.fc2(torch.relu(self.fc1(pooled(x))))


# network, its example, the units that take part (worked out by hand: no classifier on a stream, no linear to linear)
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "mixed": (
        Mixed,
        torch.zeros(1, 3, 8, 8),
        ["conv1:in", "conv1:out", "down:in", "down:out", "group:out", "point:out"],
    ),
    "resnet8": (
        lambda: create("resnet8", num_classes=10),
        torch.zeros(1, 3, 32, 32),
        [f"layer{n}.0.conv1:{end}" for n in (1, 2, 3) for end in ("in", "out")],
    ),
    **{
        name: (NETS[name].build, NETS[name].example(), units.split())
        for name, units in {
            "chain": "a:out b:out",
            "residual": "conv1:in conv1:out",
            "squeeze_excite": "conv1:out fc1:out conv2:out",
            "concat": "a:out b:out c:out",
            "dense": "conv0:out conv1:out conv2:out",
            "grouped": "a:out g:out b:out",
            "shuffle": "a:out g:out b:out",
            "depthwise": "a:out b:out",
            "flattened": "conv:out",
            "tuple_input": "a:out b:out",
        }.items()
    },
}


@pytest.mark.parametrize("alpha", [1.0, 3.0])
@pytest.mark.parametrize("name", CASES)
def test_as_the_paper_writes_it(name: str, alpha: float) -> None:
    build, example, units = CASES[name]
    model = seeded(build)
    images = drawn(example, 60)
    pairs = batches(images, answered(model, images), 25)
    graph = sc.trace(model, example)
    scores = random_scores(graph)
    assert sorted(candidates(graph)) == sorted(units)

    found = amounts(Cutter(graph, scores), units, alpha=alpha, cost=macs(graph))
    able = sum(amount.channels > 0 for amount in found.values())
    k = max(1, round(able / 3))
    if not able:
        with pytest.raises(DecideError, match="no unit can lose a whole granule"):
            sensitivity(graph, scores, pairs, alpha=alpha, exact=True)
        return
    want = algorithm_1(model, graph, scores, units, pairs, example, alpha=alpha)
    assert {n: a.floss for n, a in found.items()} == pytest.approx(want.floss, rel=1e-12)
    assert {n: a.channels for n, a in found.items()} == want.removed
    assert {n: a.stopped for n, a in found.items()} == want.stopped

    got = sensitivity(graph, scores, pairs, alpha=alpha, exact=True)
    assert got.tried.keys() == want.accuracy.keys()
    for unit, (low, high) in want.accuracy.items():
        assert low <= got.tried[unit].accuracy <= high
    assert {n: row.loss for n, row in got.tried.items()} == pytest.approx(want.loss, rel=1e-4)
    assert_accuracy(got.base_accuracy, model, pairs)
    assert got.base_loss == pytest.approx(measured(model, pairs)[1], rel=1e-4)
    assert all(row.num_images == 60 for row in got.tried.values())
    chosen = got.ranked()[:k]
    for unit in set(got.tried) - set(chosen):  # no better in accuracy; where that is the same, no better in loss
        for better in chosen:
            assert want.accuracy[better][1] >= want.accuracy[unit][0]
            if want.accuracy[better][1] == want.accuracy[unit][0]:
                assert want.loss[better] <= want.loss[unit] * (1 + 1e-4)

    plan = decide(graph, scores, got)
    assert {n: count for n, count in plan.removed().items() if count} == {n: want.removed[n] for n in chosen}
    keep = {n: without_weakest(graph.units[n], scores.values[n], want.removed[n]) for n in chosen}
    pruned = sc.prune(graph, sc.Plan.of(graph, keep))
    assert relative_error(outputs(sc.prune(graph, plan), images), outputs(pruned, images)) < 1e-6


@pytest.mark.parametrize("alpha", [0.7, 2.0, 3.0, 4.0, 9.5])
@pytest.mark.parametrize("network", ["mixed", "resnet8", "resnet56"])
def test_all_units_lose_the_same_within_half_a_granule(network: str, alpha: float) -> None:
    build, example = CASES[network][:2] if network in CASES else (lambda: create("resnet56"), torch.zeros(1, 3, 32, 32))
    graph = sc.trace(seeded(build), example)
    scores = random_scores(graph)
    found = amounts(Cutter(graph, scores), candidates(graph), alpha=alpha, cost=macs(graph))
    aim = alpha * max(amount.floss for amount in found.values())
    free = [amount for amount in found.values() if not amount.stopped]
    for amount in free:
        granule = graph.units[amount.unit].granule
        assert abs(amount.channels * amount.floss - aim) <= 0.5 * granule * amount.floss * (1 + 1e-12)
    for amount in set(found.values()) - set(free):
        unit = graph.units[amount.unit]
        assert unit.width - amount.channels == floor_of(unit) and amount.channels * amount.floss < aim
    assert len(free) >= 2, "a floor stops everything: the test says nothing"
    if network == "resnet56":
        assert len(found) == 54


def test_flosses_of_resnet56_by_hand() -> None:
    """An inner channel of stage 1: a filter of conv1 and the slice of conv2, 2 x 16 x 9 x 32 x 32 MACs. An input of
    a block: the slice of conv1 alone. Stages 2 and 3 have twice the width on a quarter of the positions."""
    graph = sc.trace(create("resnet56"), torch.zeros(1, 3, 32, 32))
    found = amounts(
        Cutter(graph, random_scores(graph)),
        candidates(graph),
        alpha=3,
        cost=macs(graph),
    )
    assert found["layer1.3.conv1:out"].floss == 2 * 16 * 9 * 1024 == 294_912
    assert found["layer1.3.conv1:in"].floss == 16 * 9 * 1024
    assert found["layer2.3.conv1:out"].floss == 2 * 32 * 9 * 256 == 147_456
    assert found["layer3.3.conv1:in"].floss == 64 * 9 * 64
    assert [found[f"layer{n}.3.conv1:out"].channels for n in (1, 2, 3)] == [3, 6, 12]
    assert [found[f"layer{n}.3.conv1:in"].channels for n in (1, 2, 3)] == [6, 12, 24]


def test_floors() -> None:
    graph = sc.trace(create("resnet56"), torch.zeros(1, 3, 32, 32))
    found = amounts(
        Cutter(graph, random_scores(graph)),
        candidates(graph),
        alpha=1000,
        cost=macs(graph),
    )
    left = {n: graph.units[n].width - a.channels for n, a in found.items()}
    assert {(graph.units[n].width, kept) for n, kept in left.items()} == {(16, 2), (32, 4), (64, 7)}
    assert all(amount.stopped for amount in found.values())


def test_params_as_cost() -> None:
    """Parameters do not know of positions: an inner channel of stage n saves 2 x 16n x 9 weights."""
    graph = sc.trace(create("resnet56"), torch.zeros(1, 3, 32, 32))
    found = amounts(
        Cutter(graph, random_scores(graph)),
        candidates(graph),
        alpha=2,
        cost=params(graph),
    )
    assert [found[f"layer{n}.3.conv1:out"].floss for n in (1, 2, 3)] == [288, 576, 1152]
    assert [found[f"layer{n}.3.conv1:out"].channels for n in (1, 2, 3)] == [8, 4, 2]
    small = seeded(lambda: create("resnet8", num_classes=10))
    images = drawn(torch.zeros(1, 3, 32, 32), 20)
    graph = sc.trace(small, images[:1])
    scores = random_scores(graph)
    got = sensitivity(graph, scores, batches(images, answered(small, images), 20), cost="params", exact=True)
    for name, row in got.tried.items():
        keep = [i for i in range(row.width) if i not in scores.order(name)[: row.channels]]
        pruned = sc.prune(graph, sc.Plan.of(graph, {name: keep}))
        weights = {n: p.numel() for n, p in small.named_parameters() if p.dim() > 1}
        assert row.saved == sum(weights.values()) - sum(p.numel() for p in pruned.parameters() if p.dim() > 1)
    assert got.cost == "params"
