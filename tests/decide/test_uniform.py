"""The same share of every unit: counts by hand, granules, floors and the classifier left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import prunus as sc
from prunus.decide.splits.uniform import uniform
from prunus.errors import DecideError
from prunus.score.score import score
from prunus.score.scores import Scores
from prunus.zoo.models import create
from tests import nets


def graph_of(model: nn.Module, size: int = 8) -> sc.ChannelGraph:
    return sc.trace(model.eval(), torch.zeros(1, 3, size, size))


def rising(graph: sc.ChannelGraph) -> Scores:
    """Channel i is worth i."""
    return Scores("rising", {name: np.arange(unit.width, dtype=float) for name, unit in graph.units.items()})


def test_the_weakest_go_and_counts_are_rounded() -> None:
    graph = graph_of(nets.Residual())  # conv1:in 4, conv1:out 6, fc:in 4
    plan = uniform(graph, rising(graph), 0.3)
    assert plan.keep["conv1:in"] == (1, 2, 3)  # 1.2 -> 1
    assert plan.keep["conv1:out"] == (2, 3, 4, 5)  # 1.8 -> 2
    assert plan.keep["fc:in"] == (0, 1, 2, 3)  # the classifier reads the stream and is left alone
    assert uniform(graph, rising(graph), 0.0).removed() == {"conv1:in": 0, "conv1:out": 0, "fc:in": 0}


def test_scores_decide_and_units_they_lack_stay() -> None:
    graph = graph_of(nets.Residual())
    values = {"conv1:out": np.array([5.0, 1.0, 4.0, 0.0, 2.0, 3.0])}
    plan = uniform(graph, Scores("mine", values), 0.5)
    assert plan.keep["conv1:out"] == (0, 2, 5)
    assert plan.keep["conv1:in"] == (0, 1, 2, 3)
    both = rising(graph)
    assert uniform(graph, both, 0.5, units=["fc:in"]).removed() == {"conv1:in": 0, "conv1:out": 0, "fc:in": 2}


def test_patterns_choose_units() -> None:
    graph = graph_of(nets.Residual())
    inner = uniform(graph, rising(graph), 0.5, only="*:out").removed()
    assert inner == {"conv1:in": 0, "conv1:out": 3, "fc:in": 0}
    assert uniform(graph, rising(graph), 0.5, exclude=["*:in"]).removed() == inner
    assert uniform(graph, rising(graph), 0.5, only=["fc"]).removed() == {"conv1:in": 0, "conv1:out": 0, "fc:in": 2}
    with pytest.raises(DecideError, match="the pattern 'conv9' matches no unit"):
        uniform(graph, rising(graph), 0.5, only=["conv9"])
    with pytest.raises(DecideError, match="either units, by their names, or the patterns"):
        uniform(graph, rising(graph), 0.5, units=["fc:in"], only=["*:out"])


def test_granules_go_whole_and_evenly() -> None:
    graph = graph_of(nets.Grouped())  # a:out has 8 channels in 4 groups of 2
    unit = graph.units["a:out"]
    values = np.array([0.0, 1.0, 9.0, 8.0, 4.0, 5.0, 7.0, 6.0])
    plan = uniform(graph, Scores("mine", {"a:out": values}), 0.5)
    assert unit.granule == 4
    assert plan.keep["a:out"] == (1, 2, 5, 6)  # the better one of each group
    assert uniform(graph, Scores("mine", {"a:out": values}), 0.2).keep["a:out"] == tuple(range(8))  # 1.6 of 4: none


def test_floors_hold() -> None:
    graph = graph_of(create("resnet20"), 32)
    plan = uniform(graph, rising(graph), 0.99)
    for name, unit in graph.units.items():
        if name != "linear:in":
            assert len(plan.keep[name]) == {16: 2, 32: 4, 64: 7}[unit.width]  # max(2, 10%)


def test_zeroed_and_pruned_agree() -> None:
    torch.manual_seed(0)
    graph = sc.trace(create("resnet20").double().eval(), torch.zeros(1, 3, 32, 32, dtype=torch.float64))
    plan = uniform(graph, score(graph, metric="l1"), 0.4)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad(), sc.zeroed(graph, plan):
        zeroed = graph.model(images)
    with torch.no_grad():
        torch.testing.assert_close(sc.prune(graph, plan)(images), zeroed, rtol=1e-9, atol=1e-9)
    assert graph.cost(plan).macs < 0.65 * graph.macs


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 3, float("nan")])
def test_bad_ratios(ratio: float) -> None:
    graph = graph_of(nets.Chain())
    with pytest.raises(DecideError, match="ratio is the fraction removed"):
        uniform(graph, rising(graph), ratio)


def test_scores_of_another_network_are_refused() -> None:
    graph = graph_of(nets.Chain())
    with pytest.raises(DecideError, match="the scores have none of the graph's units"):
        uniform(graph, Scores("mine", {"z:out": np.ones(3)}), 0.1)
    with pytest.raises(DecideError, match="unit 'z:out' is not in both"):
        uniform(graph, rising(graph), 0.1, units=["z:out"])
    with pytest.raises(DecideError, match="has 4 channels and 3 scores"):
        uniform(graph, Scores("mine", {"a:out": np.ones(3)}), 0.1)
