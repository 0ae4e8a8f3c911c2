"""Plans of every split: targets met, floors and multiples kept, beside searches through all plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.deciding.costs import cost_function
from prunus.deciding.goal import Budget
from prunus.deciding.sensitivity import Sensitivity, TrialRow, sensitivity
from prunus.deciding.settings import SPLITS, SplitSettings
from prunus.deciding.splits import SplitInputs, decide, uniform, uniform_within
from prunus.deciding.widths import Cutter, WidthLimits, amounts, candidates
from prunus.errors import DecideError
from prunus.scoring.scores import Scores
from prunus.zoo.models import create
from tests import nets
from tests.deciding.toys import Mixed, algorithm_1, answered, batches, drawn, random_scores, seeded, without_weakest
from tests.proof import counted_macs

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mixed": (Mixed, Mixed.example),
    "resnet20": (lambda: create("resnet20"), torch.zeros(1, 3, 32, 32)),
    "preresnet20": (lambda: create("preresnet20"), torch.zeros(1, 3, 32, 32)),
}
EXAMPLE = torch.zeros(1, 3, 8, 8)


@cache
def network(name: str) -> tuple[nn.Module, Any, pr.ChannelGraph, Scores]:
    build, example = NETWORKS[name]
    model = seeded(build)
    graph = pr.trace(model, example)
    return model, example, graph, random_scores(graph)


def made(graph: pr.ChannelGraph, scores: Scores, *, alpha: float = 3, seed: int = 0, **room: Any) -> Sensitivity:
    """A sensitivity with drawn accuracies: what units are ranked by is not what is tested here."""
    cutter = Cutter(graph, scores, WidthLimits(**room))
    found = amounts(cutter, candidates(graph), alpha=alpha, cost=cost_function(graph, "macs"))
    draw = np.random.default_rng(seed).permutation(len(found)) / len(found)
    rows = {
        n: TrialRow(n, a.channels, graph.units[n].width, float(v), 1 - float(v), float(v), 0.0, a.floss, 10, a.stopped)
        for (n, a), v in zip(found.items(), draw, strict=True)
        if a.channels
    }
    return Sensitivity("algorithm1", "accuracy", "macs", alpha, 0.9, 0.1, 0.9, 10, rows)


def within(graph: pr.ChannelGraph, scores: Scores, left: float, round_to: int = 1) -> SplitInputs:
    """A cut that leaves this number of MACs."""
    return SplitInputs(graph, scores, Budget("macs", left, graph.macs), SplitSettings(round_to=round_to))


def lost_by(plan: pr.Plan) -> dict[str, int]:
    return {name: count for name, count in plan.removed().items() if count}


# --------------------------------------------------------------------------------------------------------- algorithm 1


def test_targets_are_met_within_half_a_per_cent() -> None:
    model, example, graph, scores = network("preresnet20")
    for target, k, seed in ((0.03, None, 0), (0.5, None, 0), (0.25, 2, 1), (0.7, 2, 1)):
        plan = decide(graph, scores, made(graph, scores, seed=seed), k, target)
        removed = 1 - counted_macs(pr.prune(graph, plan), example) / counted_macs(model, example)
        assert target <= removed <= target + 0.005
    # A later round, whose target is of the original network.
    later = pr.trace(pr.prune(graph, decide(graph, scores, made(graph, scores), target=0.3)), example)
    scores = random_scores(later, seed=1)
    plan = decide(later, scores, made(later, scores), target=0.5, whole=graph.macs)
    assert 0.5 <= 1 - counted_macs(pr.prune(later, plan), example) / counted_macs(model, example) <= 0.505


def test_the_chosen_units_lose_in_proportion_and_others_join_only_where_they_must() -> None:
    model, example, graph, scores = network("resnet20")
    found = made(graph, scores, alpha=2)
    small = pr.prune(graph, decide(graph, scores, found, target=0.4, cost="params"))
    before, after = (sum(p.numel() for p in net.parameters() if p.dim() > 1) for net in (model, small))
    assert 0.4 <= 1 - after / before <= 0.405
    lost = lost_by(decide(graph, scores, found, k=6, target=0.1))
    assert set(lost) <= set(found.ranked()[:6])
    factors = [lost[n] / found.tried[n].channels for n in lost if not found.tried[n].stopped]
    widest = max(1 / found.tried[n].channels for n in lost)
    assert max(factors) - min(factors) <= 2 * widest
    names = set(lost_by(decide(graph, scores, found, k=2, target=0.5)))
    assert names == set(found.ranked()[: len(names)]) and len(names) > 2
    assert counted_macs(at_floors(graph, scores, found.ranked()[: len(names) - 1]), example) > graph.macs / 2


def test_whole_steps_go_past_the_goal_and_the_default_meets_it() -> None:
    """n_l = round(alpha FLOSS_max / FLOSS_l), with FLOSS counted on the network without a channel."""
    model, example, graph, scores = network("mixed")
    found = made(graph, scores, alpha=2)
    best = found.ranked()[:2]
    literal = algorithm_1(model, graph, scores, candidates(graph), [], example, alpha=2)
    whole = {name: literal.removed[name] for name in best}
    keep = {name: without_weakest(graph.units[name], scores.values[name], whole[name]) for name in best}
    macs = counted_macs(pr.prune(graph, pr.Plan.of(graph, keep)), example)
    left = graph.macs - 0.7 * (graph.macs - macs)  # a goal that one step goes past
    for whole_steps in (True, False):
        settings = SplitSettings(split="algorithm1", k=2, alpha=2, whole_steps=whole_steps)
        inputs = SplitInputs(graph, scores, Budget("macs", left, graph.macs), settings, lambda _: found)
        plan = SPLITS["algorithm1"].plan(inputs)
        assert (lost_by(plan) == whole) == whole_steps
        found_macs = counted_macs(pr.prune(graph, plan), example)
        assert found_macs == macs if whole_steps else macs < found_macs <= 1.005 * left


def at_floors(graph: pr.ChannelGraph, scores: Scores, names: Iterable[str]) -> nn.Module:
    """The network when these units have lost all that they may."""
    keep = {}
    for name in names:
        unit = graph.units[name]
        least = unit.granule * math.ceil(max(2, math.ceil(unit.width / 10)) / unit.granule)
        keep[name] = without_weakest(unit, scores.values[name], unit.width - least)
    return pr.prune(graph, pr.Plan.of(graph, keep))


@pytest.mark.parametrize("name", ["mixed", "resnet20"])
def test_out_of_reach_says_how_far_it_can_go(name: str) -> None:
    model, example, graph, scores = network(name)
    found = made(graph, scores)
    smallest = at_floors(graph, scores, found.tried)
    reach = 1 - counted_macs(smallest, example) / counted_macs(model, example)
    complaint = rf"removing 99\.9% of the macs is out of reach.*\b{100 * reach:.1f}% can be removed"
    with pytest.raises(DecideError, match=complaint):
        decide(graph, scores, found, target=0.999)
    plan = decide(graph, scores, found, target=reach - 1e-9)
    assert counted_macs(pr.prune(graph, plan), example) == counted_macs(smallest, example)
    with pytest.raises(DecideError, match="out of reach"):
        decide(graph, scores, found, target=reach + 1e-3)


def test_floors_are_shares_of_the_original_widths() -> None:
    """A unit of 64 channels that has 10 left may go to 7, not to 2."""
    _, example, graph, scores = network("resnet20")
    names = [n for n in candidates(graph) if graph.units[n].width == 64]
    small = pr.prune(graph, pr.Plan.of(graph, {n: list(range(10)) for n in names}))
    later = pr.trace(small, example)
    scores = random_scores(later)
    widths = {n: u.width for n, u in graph.units.items()}
    assert WidthLimits(1, widths).choices(later.units[names[0]]) == [0, 1, 2, 3]
    assert WidthLimits(1).choices(later.units[names[0]])[-1] == 8
    found = made(later, scores, original=widths)
    with pytest.raises(DecideError, match="out of reach"):
        decide(later, scores, found, target=0.99, widths=widths)
    plan = decide(later, scores, found, len(found.tried), target=0.6, widths=widths)
    assert all(len(plan.keep[n]) >= 7 for n in names)
    pairs = batches(*(lambda x: (x, answered(small, x)))(drawn(example, 8)), 8)
    tried = sensitivity(later, scores, pairs, alpha=100, widths=widths, exact=True).tried
    assert all(tried[n].channels == 3 and tried[n].stopped for n in names)


def test_li_et_al_by_ratio() -> None:
    """Curves over ratios; k units lose one share, solved to remove as many MACs as Algorithm 1's plan does."""
    model, example, graph, scores = network("resnet20")
    images = drawn(example, 12)
    pairs = batches(images, answered(model, images), 12)
    flops = decide(graph, scores, sensitivity(graph, scores, pairs, exact=True))
    removed = 1 - graph.cost(flops).macs / graph.macs
    found = sensitivity(graph, scores, pairs, split="ratio", ratios=(0.25, 0.5, 0.75), trial_ratio=0.5)
    assert found.alpha is None and set(found.curves) == set(candidates(graph)) == set(found.tried)
    for name, curve in found.curves.items():
        width = graph.units[name].width
        assert [row.channels for row in curve] == [width // 4, width // 2, 3 * width // 4]
        assert found.tried[name] == curve[1]
    plan = decide(graph, scores, found, target=removed)
    assert removed <= 1 - counted_macs(pr.prune(graph, plan), example) / graph.macs <= removed + 0.005
    shares = {n: count / graph.units[n].width for n, count in lost_by(plan).items()}
    assert set(shares) == set(found.ranked()[:6])
    assert max(shares.values()) - min(shares.values()) <= 2 / 16 + 1e-9  # one channel of the narrowest, each way
    half = decide(graph, scores, found)
    assert lost_by(half) == {n: graph.units[n].width // 2 for n in found.ranked()[:6]}
    first = found.ranked()[0]
    one = pr.prune(graph, pr.Plan.of(graph, {first: list(half.keep[first])}))
    assert found.curves[first][1].saved == graph.macs - counted_macs(one, example)


# ------------------------------------------------------------------------------------------------------------- uniform


def graph_of(model: nn.Module, size: int = 8) -> pr.ChannelGraph:
    return pr.trace(model.eval(), torch.zeros(1, 3, size, size))


def rising(graph: pr.ChannelGraph) -> Scores:
    """Channel i is worth i."""
    return Scores("rising", {name: np.arange(unit.width, dtype=float) for name, unit in graph.units.items()})


def test_the_weakest_go_and_counts_are_rounded_of_units_chosen_by_names_and_patterns() -> None:
    graph = graph_of(nets.Residual())  # conv1:in 4, conv1:out 6, fc:in 4
    plan = uniform(graph, rising(graph), 0.3)
    assert plan.keep["conv1:in"] == (1, 2, 3)  # 1.2 -> 1
    assert plan.keep["conv1:out"] == (2, 3, 4, 5)  # 1.8 -> 2
    assert plan.keep["fc:in"] == (0, 1, 2, 3)  # the classifier reads the stream and is left alone
    assert lost_by(uniform(graph, rising(graph), 0.0)) == {}
    plan = uniform(graph, Scores("mine", {"conv1:out": np.array([5.0, 1.0, 4.0, 0.0, 2.0, 3.0])}), 0.5)
    assert plan.keep["conv1:out"] == (0, 2, 5)
    assert plan.keep["conv1:in"] == (0, 1, 2, 3)  # no scores: it stays
    for how, lost in (
        ({"units": ["fc:in"]}, {"fc:in": 2}),
        ({"only": "*:out"}, {"conv1:out": 3}),
        ({"exclude": ["*:in"]}, {"conv1:out": 3}),
        ({"only": ["fc"]}, {"fc:in": 2}),
    ):
        assert lost_by(uniform(graph, rising(graph), 0.5, **how)) == lost  # type: ignore[arg-type]


def test_granules_go_whole_and_floors_hold() -> None:
    graph = graph_of(nets.Grouped())  # a:out has 8 channels in 4 groups of 2
    mine = Scores("mine", {"a:out": np.array([0.0, 1.0, 9.0, 8.0, 4.0, 5.0, 7.0, 6.0])})
    assert graph.units["a:out"].granule == 4
    assert uniform(graph, mine, 0.5).keep["a:out"] == (1, 2, 5, 6)  # the better one of each group
    assert uniform(graph, mine, 0.2).keep["a:out"] == tuple(range(8))  # 1.6 of 4: none
    graph = graph_of(create("resnet20"), 32)
    plan = uniform(graph, rising(graph), 0.99)
    for name, unit in graph.units.items():
        if name != "linear:in":
            assert len(plan.keep[name]) == {16: 2, 32: 4, 64: 7}[unit.width]  # max(2, 10%)


CHAIN, FLOORS = (8, 20, 30), (2, 2, 3)


def chain() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((3, *CHAIN), (*CHAIN, 4), strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def chain_macs(a: int, b: int, c: int) -> int:
    return 9 * 64 * (3 * a + a * b + b * c + 4 * c)


@pytest.mark.parametrize("share_left", [0.9, 0.5, 0.2])
def test_the_smallest_share_that_meets_the_goal(share_left: float) -> None:
    """Beside a search through all shares in steps of 1/1000, MACs counted by PyTorch's own counter."""
    model = seeded(chain)
    graph = pr.trace(model, EXAMPLE)
    scores, names = random_scores(graph), list(graph.units)
    goal = share_left * counted_macs(model, EXAMPLE)

    def macs(removed: list[int]) -> int:
        return chain_macs(*(width - gone for width, gone in zip(CHAIN, removed, strict=True)))

    for step in range(1001):
        removed = [min(round(step / 1000 * w), w - f) for w, f in zip(CHAIN, FLOORS, strict=True)]
        if macs(removed) <= goal:
            break
    plan = uniform_within(within(graph, scores, goal))
    found = [plan.removed()[name] for name in names]
    assert all(0 <= most - got <= 1 for most, got in zip(removed, found, strict=True))  # a step may be given back
    assert counted_macs(pr.prune(graph, plan), EXAMPLE) == macs(found) <= goal
    for i in range(3):  # and no more can be given back
        less = [got - (i == j) for j, got in enumerate(found)]
        assert found[i] < removed[i] or less[i] < 0 or macs(less) > goal
    for name in names:
        assert list(plan.keep[name]) == without_weakest(graph.units[name], scores.values[name], plan.removed()[name])
    plan = uniform_within(within(graph, scores, goal, 4))
    assert all(len(plan.keep[name]) % 4 == 0 for name in lost_by(plan)) and graph.cost(plan).macs <= goal


# ------------------------------------------------------------------------------------------------------ global ranking


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
@pytest.mark.parametrize("by_scales", [False, True])
def test_channels_go_from_the_lowest_score_until_the_goal_is_met(share: float, by_scales: bool) -> None:
    """Beside a loop that removes them one by one. By default, scores are |scale| of the batch norms, as in network
    slimming."""
    model: Any = seeded(chain)
    graph = pr.trace(model, EXAMPLE)
    draw, names, split = np.random.default_rng(0), list(graph.units), SPLITS["global_ranking"]
    scores = Scores("drawn", {name: draw.normal(size=graph.units[name].width) for name in names})
    if by_scales:
        assert not split.ranks
        scores = pr.score(graph, metric=split.metric)
        for name, place in zip(names, (1, 4, 7), strict=True):
            assert scores.values[name] == pytest.approx(model[place].weight.detach().abs().numpy())
    goal = share * counted_macs(model, EXAMPLE)
    kept = {name: set(range(width)) for name, width in zip(names, CHAIN, strict=True)}
    every = sorted((float(v), name, i) for name in names for i, v in enumerate(scores.values[name]))
    for _, name, channel in every:
        if chain_macs(*map(len, kept.values())) <= goal:
            break
        if len(kept[name]) > FLOORS[names.index(name)]:
            kept[name].discard(channel)
    plan = split.plan(within(graph, scores, goal))
    assert {name: set(plan.keep[name]) for name in names} == kept
    assert counted_macs(pr.prune(graph, plan), EXAMPLE) == chain_macs(*map(len, kept.values())) <= goal
