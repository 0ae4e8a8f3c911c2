"""Sensitivity beside Algorithm 1 taken literally: every network built, counted and evaluated."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.deciding.costs import cost_function
from prunus.deciding.sensitivity import Sensitivity, sensitivity
from prunus.deciding.splits import decide
from prunus.deciding.widths import Cutter, amounts, candidates
from prunus.errors import DecideError
from prunus.util.typed_json import from_data, to_data
from prunus.zoo.models import create
from tests.deciding.toys import (
    Mixed,
    algorithm_1,
    answered,
    batches,
    drawn,
    measured,
    mixed,
    random_scores,
    seeded,
    without_weakest,
)
from tests.nets import NETS
from tests.proof import assert_accuracy, outputs, relative_error

# network, its example, the units that take part (worked out by hand: no classifier on a stream, no linear to linear)
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "mixed": (Mixed, Mixed.example, ["conv1:in", "conv1:out", "down:in", "down:out", "group:out", "point:out"]),
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


@pytest.mark.parametrize(("name", "alpha"), [*((n, 3.0) for n in CASES), ("mixed", 1.0)])
def test_as_the_paper_writes_it(name: str, alpha: float) -> None:
    build, example, units = CASES[name]
    model = seeded(build)
    images = drawn(example, 60)
    pairs = batches(images, answered(model, images), 25)
    graph = pr.trace(model, example)
    scores = random_scores(graph)
    assert sorted(candidates(graph)) == sorted(units)

    found = amounts(Cutter(graph, scores), units, alpha=alpha, cost=cost_function(graph, "macs"))
    able = sum(amount.channels > 0 for amount in found.values())
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
        assert low <= got.tried[unit].accuracy <= high  # type: ignore[operator]
    assert {n: row.loss for n, row in got.tried.items()} == pytest.approx(want.loss, rel=1e-4)
    assert_accuracy(got.base_accuracy, model, pairs)
    assert got.base_loss == pytest.approx(measured(model, pairs)[1], rel=1e-4)
    assert all(row.num_images == 60 for row in got.tried.values())
    chosen = got.ranked()[: max(1, round(able / 3))]
    for unit in set(got.tried) - set(chosen):  # no better in accuracy; where that is the same, no better in loss
        for better in chosen:
            assert want.accuracy[better][1] >= want.accuracy[unit][0]
            if want.accuracy[better][1] == want.accuracy[unit][0]:
                assert want.loss[better] <= want.loss[unit] * (1 + 1e-4)

    plan = decide(graph, scores, got)
    assert {n: count for n, count in plan.removed().items() if count} == {n: want.removed[n] for n in chosen}
    keep = {n: without_weakest(graph.units[n], scores.values[n], want.removed[n]) for n in chosen}
    pruned = pr.prune(graph, pr.Plan.of(graph, keep))
    assert relative_error(outputs(pr.prune(graph, plan), images), outputs(pruned, images)) < 1e-6


def test_a_tensor_that_forward_creates() -> None:
    """`torch.tensor([...])` in forward is a constant of the graph, and no attribute of the model."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(torch.relu(self.a(x)) * torch.tensor([1.5]))
            return self.fc(x.relu().mean((2, 3))) + torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])

    model = seeded(Constant)
    graph = pr.trace(model, Mixed.example)
    scores = random_scores(graph)
    images = drawn(Mixed.example, 60)
    pairs = batches(images, answered(model, images), 25)
    found = sensitivity(graph, scores, pairs, measure="loss", cost="params", alpha=1, exact=True)
    assert set(found.tried) == set(graph.units) == {"a:out", "b:out"} and found.cost == "params"
    for name, row in found.tried.items():
        assert row.saved == row.channels * {"a:out": 27 + 54, "b:out": 36 + 5}[name]
        with pr.zeroed(graph, {name: without_weakest(graph.units[name], scores.values[name], row.channels)}):
            assert row.value == pytest.approx(-measured(model, pairs)[1], rel=1e-5)


def test_everything_is_left_as_found() -> None:
    model, graph, scores, pairs = mixed(60)
    model.train()
    model.bn.eval()
    model.stem.weight.requires_grad_(False)
    torch.manual_seed(5)

    def state() -> list[Any]:
        tensors = [*model.state_dict().values(), *(x for pair in pairs for x in pair), torch.get_rng_state()]
        modules = [(m.training, [*m._forward_hooks], [*m._forward_pre_hooks]) for m in model.modules()]
        drawn = np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # noqa: NPY002
        return [[x.tolist() for x in tensors], modules, drawn, [p.requires_grad for p in model.parameters()]]

    before = copy.deepcopy(state())
    for how in ({}, {"exact": True}, {"split": "ratio", "ratios": (0.5,)}, {"cost": "latency"}):
        sensitivity(graph, scores, pairs, **how)  # type: ignore[arg-type]
    answers = [1.0]  # of the whole network; the first unit's trial fails
    with pytest.raises(IndexError):
        sensitivity(graph, scores, pairs, measure=lambda network, loader: answers.pop())
    assert state() == before


def test_the_same_again_as_json_and_as_a_table() -> None:
    _, graph, scores, pairs = mixed(200)
    units = pr.repair_each(graph, pairs)
    one, two = (sensitivity(graph, scores, pairs, seed=3, repair=units) for _ in range(2))
    assert one == two and one.repair == "solve"
    data = json.loads(json.dumps(to_data(one)))
    assert data["tried"]["point:out"]["channels"] == one.tried["point:out"].channels
    assert data["num_images"] == 200 and data["alpha"] == 3.0 and data["repair"] == "solve"
    assert from_data(Sensitivity, data) == one
    lines, best = repr(one).splitlines(), one.ranked()[0]
    assert lines[0] == f"Sensitivity of 6 units (algorithm1, accuracy {one.base_value:.4f} before)"
    row = one.tried[best]
    assert lines[2].split() == [best, str(row.channels), "of", str(row.width), f"{row.value:.4f}"]


def test_units_that_cannot_lose_n_l_channels_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """conv1 of 12 channels and conv2 of 3, which may lose one, on the same pixels; a channel of conv1 saves more.

    FLOSS_1 = 9 (2 + 3) and FLOSS_2 = 9 * 12 + 4 for each of 16 pixels (conv1 reads 2 channels; conv2 is read by 4
    outputs of a 1x1 convolution): n_1 = round(2 FLOSS_2 / FLOSS_1) = round(224 / 45) = 5, and n_2 = 2 of at most 1.
    """
    model = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 3, padding=1), nn.ReLU())
    model.append(nn.Conv2d(3, 4, 1)).append(nn.AdaptiveAvgPool2d(1)).append(nn.Flatten())
    graph = pr.trace(model.eval(), torch.zeros(1, 2, 4, 4))
    holdout = [(torch.randn(8, 2, 4, 4), torch.arange(8) % 4)]
    found = sensitivity(graph, random_scores(graph), holdout, alpha=2, exact=True)
    assert {name: row.channels for name, row in found.tried.items()} == {"0:out": 5, "2:out": 1}
    (note,) = found.notes
    assert note.endswith("because of the floor (2 channels, 10%): 2:out (1 of 3)")
    assert note in caplog.messages
    plan = pr.Plan.of(graph, {"2:out": [0, 2]})
    smaller = pr.trace(pr.prune(graph, plan), torch.zeros(1, 2, 4, 4))
    found = sensitivity(smaller, random_scores(smaller), holdout, alpha=2, exact=True, widths={"2:out": 3})
    assert found.left_out == ("2:out",) and found.notes == ["not tried, because they can lose no channel: 2:out"]
    assert pr.sensitivity(graph, random_scores(graph), holdout, alpha=1, exact=True).notes == []
