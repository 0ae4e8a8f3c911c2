"""What is refused, and what the message says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.deciding.goal import Budget, Goal, parse_number
from prunus.deciding.sensitivity import sensitivity
from prunus.deciding.settings import SPLITS
from prunus.deciding.splits import SplitInputs, decide, global_ranking, least_error, uniform, uniform_within
from prunus.deciding.widths import candidates, check_patterns
from prunus.errors import DataError, DecideError
from prunus.scoring.scores import Scores
from prunus.zoo.models import create
from tests import nets
from tests.deciding.toys import mixed, random_scores
from tests.run.toys import HOLDOUT, TRAIN, run, trained

NAN, INF = float("nan"), float("inf")


@cache
def case() -> tuple[Any, pr.ChannelGraph, Scores, list[Any]]:
    return mixed(10)


@cache
def toy() -> tuple[pr.ChannelGraph, Scores]:
    graph = pr.trace(trained(), torch.zeros(1, 3, 6, 6))
    return graph, pr.score(graph, TRAIN, metric="l1")


@cache
def small() -> pr.ChannelGraph:
    """a:out has 4 channels."""
    return pr.trace(nets.Chain().eval(), torch.zeros(1, 3, 8, 8))


def measure(**how: Any) -> Any:
    _, graph, scores, pairs = case()
    return sensitivity(graph, how.pop("scores", scores), pairs, **how)


def to_plan(k: int | None = None, target: float | None = None, **how: Any) -> Any:
    _, graph, scores, _ = case()
    return decide(graph, scores, measure(exact=True, alpha=1), k, target, **how)


def flat(ratio: float = 0.1, values: Any = None, **how: Any) -> Any:
    scores = random_scores(small()) if values is None else Scores("mine", values)
    return uniform(small(), scores, ratio, **how)


def without_norms() -> Any:
    plain = pr.trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), torch.zeros(1, 3, 8, 8))
    scores, budget = pr.score(plain, metric="bn_scale"), Goal(target=0.4).budget(plain)
    return SPLITS["global_ranking"].plan(SplitInputs(plain, scores, budget))


def far(split: Callable[..., Any]) -> Any:
    _, graph, scores, _ = case()
    return split(SplitInputs(graph, scores, Budget("macs", 0.001 * graph.macs, graph.macs)))


def resnet8() -> pr.ChannelGraph:
    return pr.trace(create("resnet8"), torch.zeros(1, 3, 32, 32))


def linear() -> pr.ChannelGraph:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    return pr.trace(network, torch.zeros(1, 3, 2, 2))


def single() -> pr.ChannelGraph:
    return pr.trace(nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten()), torch.zeros(1, 3, 2, 2))


UNREACHED = r"removing 99\.9% of the macs is out of reach: with every unit at its floor"
REFUSALS: list[tuple[Callable[[], Any], str]] = [
    # settings of sensitivity
    *((lambda a=a: measure(alpha=a), "alpha must be above 0") for a in (0.0, -3.0, NAN, INF)),
    (lambda: measure(alpha=1e-4), "no unit can lose a whole granule within its floor"),
    (lambda: measure(k=0), "k must be at least 1, got 0"),
    (lambda: measure(k=7), "6; got 7"),
    (lambda: measure(measure="acuracy"), "measure must be one of accuracy, loss; got 'acuracy' .did you mean accuracy"),
    (lambda: measure(split="algoritm1"), "no split called 'algoritm1': did you mean algorithm1"),
    (lambda: measure(split="uniform"), "ranks units for the splits"),
    (lambda: measure(alfa=3.0), "no setting called 'alfa': did you mean alpha"),
    (lambda: measure(cost="watts"), "no cost called 'watts'.*Available: latency, macs, memory, params"),
    *((lambda c=c: measure(confidence=c), r"confidence must be at least 0\.5 and below 1") for c in (0.3, 1.0, NAN)),
    (lambda: measure(tolerance=-1e-3), "tolerance must be at least 0"),
    (lambda: measure(split="ratio", ratios=(0.5, 1.0)), "ratios are fractions removed, above 0 and below 1; got 1.0"),
    (lambda: measure(round_to=1000), "no unit can lose a whole granule within its floor; lower round_to"),
    (lambda: measure(round_to=0), "round_to must be at least 1, got 0"),
    (lambda: measure(measure=lambda net, loader: "good"), "your measure must return a number, but returned str"),
    (lambda: measure(measure=lambda net, loader: NAN), "your measure returned NaN for the whole network"),
    # scores of another network
    (
        lambda: measure(scores=Scores("short", {**case()[2].values, "down:out": np.zeros(5)})),
        "unit 'down:out' has 24 channels and 5 scores; score the network",
    ),
    (lambda: measure(scores=Scores("none", {"a:out": np.zeros(4)})), "the scores have none of the graph's units"),
    (lambda: flat(values={"z:out": np.ones(3)}), "the scores have none of the graph's units"),
    (lambda: flat(units=["z:out"]), "unit 'z:out' is not in both"),
    (lambda: flat(values={"a:out": np.ones(3)}), "has 4 channels and 3 scores"),
    # plans
    *((lambda k=k: to_plan(k), f"k must lie between 1 and .* 6; got {k}") for k in (0, -1, 7, 100)),
    *((lambda t=t: to_plan(target=t), "fraction to remove, above 0 and below 1") for t in (0.0, 1.0, -0.2, 50, NAN)),
    (lambda: to_plan(target=0.3, whole=2 * case()[1].macs), r"the target of 30\.0% already"),
    (lambda: to_plan(round_to=0), "round_to must be a whole number of channels, at least 1; got 0"),
    (lambda: decide(case()[1], case()[2], "ranking"), "expected what prunus.sensitivity returns, got str"),  # type: ignore[arg-type]
    *((lambda r=r: flat(r), "ratio is the fraction removed") for r in (-0.1, 1.0, 3, NAN)),
    (lambda: flat(units=["a:out"], only=["*:out"]), "either units, by their names, or the patterns"),
    (lambda: flat(only=["conv9"]), "the pattern 'conv9' matches no unit"),
    (without_norms, "no unit has a batch norm of its own"),
    *((lambda s=s: far(s), UNREACHED) for s in (uniform_within, global_ranking, least_error)),
    # goals
    (lambda: Goal().budget(small()), "give a goal"),
    (lambda: Goal(target=0.5, ratio=0.5).budget(small()), "give one goal, not 2: target, ratio"),
    (lambda: Goal(macs=1e12).budget(small()), "meets the goal already"),
    (lambda: Goal(speedup=2.0).budget(small()), "a speed-up needs a table of the layers' times"),
    (lambda: parse_number("x63M"), "expected a number such as 63M"),
    # patterns
    (lambda: measure(exclude=["*"]), "no unit is left to prune"),
    *(
        (
            lambda o=o, f=f: f(**{o: ("wide*", "conv1:inn")}),
            rf"{o}: the pattern 'conv1:inn' matches no unit.*nearest names are conv1:in, ",
        )
        for o in ("only", "exclude")
        for f in (lambda **how: run(target=0.1, **how), lambda **how: pr.sensitivity(*toy(), HOLDOUT, **how))
    ),
    (lambda: run(target=0.1, only=3), "a string or several strings, got 3"),
    (lambda: check_patterns(resnet8(), only=["layer1"]), r"inside it, write 'layer1\.\*'"),
    (lambda: check_patterns(toy()[0], only=["fc"]), "only: fc cannot be pruned: "),
    (lambda: candidates(linear()), "Sequential has no convolutions.*name them with only="),
    (lambda: candidates(single()), "Sequential has no channels that can be removed. 0: "),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSALS)))
def test_refusals(number: int) -> None:
    act, complaint = REFUSALS[number]
    with pytest.raises(DecideError, match=complaint):
        act()


@pytest.mark.parametrize("exact", [True, False])
def test_held_out_sets_that_cannot_be_used(exact: bool) -> None:
    _, graph, scores, pairs = case()
    images, labels = pairs[0]
    for loader, complaint in (
        ([], "the held-out loader gave no images"),
        ([(images[:0], labels[:0])], "the held-out loader gave no images"),
        ([images], "batch 0 has no labels, and accuracy needs them"),
        ([{"image": images}], r"no labels \(it is a dict with the keys \['image'\]\)"),
        ([(images, labels.float())], "labels must be integers"),
        ([(images, labels + 5)], "the model has 5 classes"),
        ([(images, torch.eye(5, dtype=torch.long)[labels])], r"labels must have the shape \[N\]"),
    ):
        with pytest.raises(DataError, match=complaint):
            sensitivity(graph, scores, loader, exact=exact)
