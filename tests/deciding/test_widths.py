"""Patterns that choose units; floors and multiples by hand; FLOSS and n_l beside the paper's equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.deciding.costs import cost_function
from prunus.deciding.sensitivity import sensitivity
from prunus.deciding.settings import RankSettings
from prunus.deciding.widths import Amount, Cutter, WidthLimits, amounts, candidates, check_patterns
from prunus.zoo.models import create
from tests.deciding.toys import Mixed, mixed, random_scores, seeded
from tests.graph.test_attention import IMAGE, Transformer
from tests.nets import NETS


def amounts_of(graph: pr.ChannelGraph, alpha: float, cost: str = "macs") -> dict[str, Amount]:
    cutter = Cutter(graph, random_scores(graph))
    return amounts(cutter, candidates(graph), alpha=alpha, cost=cost_function(graph, cost))


def test_multiples_by_hand() -> None:
    """point:out has 20 channels. In eights it may go down to 16 or 8; nearest to what Eqn. 3 says."""
    graph = pr.trace(seeded(Mixed), Mixed.example)
    unit = graph.units["point:out"]
    assert WidthLimits(8).choices(unit) == [0, 4, 12]
    assert [WidthLimits(8).nearest(unit, x) for x in (0.4, 1.9, 2.1, 7.9, 8.1, 30)] == [0, 0, 4, 4, 12, 12]
    assert WidthLimits(8).nearest(unit, 0.4, least=1) == 4 and WidthLimits(64).nearest(unit, 3, least=1) == 0
    assert WidthLimits().choices(unit) == list(range(19))
    grouped = graph.units["group:out"]  # 48 in 4 groups; 10% is 5, two of each group are 8
    assert WidthLimits().choices(grouped) == list(range(0, 41, 4))
    assert WidthLimits(16).choices(grouped) == [0, 16, 32]
    assert WidthLimits(3).choices(grouped) == [0, 12, 24, 36]
    assert WidthLimits(64).choices(unit) == [0]


def test_resnet56_by_hand() -> None:
    """An inner channel of stage 1: a filter of conv1 and the slice of conv2, 2 x 16 x 9 x 32 x 32 MACs. An input of
    a block: the slice of conv1 alone. Stages 2 and 3 have twice the width on a quarter of the positions. Parameters do
    not know of positions: an inner channel of stage n saves 2 x 16n x 9 weights."""
    graph = pr.trace(create("resnet56"), torch.zeros(1, 3, 32, 32))
    found = amounts_of(graph, 3)
    assert len(found) == 54
    assert found["layer1.3.conv1:out"].floss == 2 * 16 * 9 * 1024 == 294_912
    assert found["layer1.3.conv1:in"].floss == 16 * 9 * 1024
    assert found["layer2.3.conv1:out"].floss == 2 * 32 * 9 * 256 == 147_456
    assert found["layer3.3.conv1:in"].floss == 64 * 9 * 64
    assert [found[f"layer{n}.3.conv1:out"].channels for n in (1, 2, 3)] == [3, 6, 12]
    assert [found[f"layer{n}.3.conv1:in"].channels for n in (1, 2, 3)] == [6, 12, 24]
    weights = amounts_of(graph, 2, "params")
    assert [weights[f"layer{n}.3.conv1:out"].floss for n in (1, 2, 3)] == [288, 576, 1152]
    assert [weights[f"layer{n}.3.conv1:out"].channels for n in (1, 2, 3)] == [8, 4, 2]
    floors = amounts_of(graph, 1000)
    left = {(graph.units[n].width, graph.units[n].width - a.channels) for n, a in floors.items()}
    assert left == {(16, 2), (32, 4), (64, 7)} and all(amount.stopped for amount in floors.values())


class Inner(nn.Module):
    """One unit of 24 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Conv2d(3, 24, 1), nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x).relu())


def test_what_costs_nothing_at_first_still_counts() -> None:
    """One channel saves nothing, half of them do: FLOSS is theirs. Where all are alike, it is Eqn. 2's."""
    graph = pr.trace(seeded(Inner), Mixed.example)
    cutter = Cutter(graph, random_scores(graph))
    (name,) = graph.units
    steps = amounts(cutter, [name], alpha=1, cost=lambda keep: 12.0 * -(-len(keep.get(name, range(24))) // 12))
    assert steps[name].floss == 1.0  # 24 -> 12 channels saves 12
    even = amounts(cutter, [name], alpha=1, cost=lambda keep: 0.1 * len(keep.get(name, range(24))))
    assert even[name].floss == pytest.approx(0.1)


def test_patterns_of_units_and_of_layers() -> None:
    _, graph, scores, pairs = mixed(10)
    everything = {"conv1:in", "conv1:out", "down:in", "down:out", "group:out", "point:out"}
    assert set(candidates(graph)) == everything
    assert set(graph.units) - everything == {"fc1:out"}  # between linear layers: left alone unless named
    assert set(candidates(graph, exclude=["conv1*"])) == everything - {"conv1:in", "conv1:out"}
    assert set(candidates(graph, exclude=["*:in", "point"])) == {"conv1:out", "down:out", "group:out"}
    assert set(candidates(graph, only=["down", "fc1:out"])) == {"down:in", "down:out", "fc1:out"}
    assert set(candidates(graph, exclude=["*:out"], only=["down*"])) == {"down:in"}
    found = sensitivity(graph, scores, pairs, exclude=["conv1*", "group:out"], exact=True)
    assert set(found.tried) == {"down:in", "down:out", "point:out"}
    residual = pr.trace(seeded(NETS["residual"].build), Mixed.example)
    assert set(residual.units) - set(candidates(residual)) == {"fc:in"}  # the classifier's reading of the stream
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    assert candidates(pr.trace(linear, torch.zeros(1, 3, 2, 2)), only=["1*"])
    assert "fc2" in graph.frozen
    check_patterns(graph, only=["down*"], exclude=["fc2"])  # a frozen layer may be excluded
    # A unit at its last granule is no longer a unit of the smaller network; the pattern that names it stays valid.
    check_patterns(graph, exclude=["gone:out"], original=["gone:out"])


def test_excluding_a_layer_without_a_unit_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The stem writes to the stream, whose readers are the units."""
    graph = pr.trace(create("resnet8").eval(), torch.zeros(1, 3, 32, 32))
    assert "conv1" in graph.layers and not any(name.startswith("conv1:") for name in graph.units)
    check_patterns(graph, exclude=["conv1*"])
    assert caplog.messages == ["exclude: 'conv1*' matches conv1, which has no unit of its own: it excludes nothing"]
    with pytest.raises(pr.DecideError, match=r"the pattern 'stem.' matches no unit and no layer"):
        check_patterns(graph, exclude=["stem*"])
    with pytest.raises(pr.DecideError, match=r"the pattern 'conv1.' matches no unit and no layer that can be pruned"):
        check_patterns(graph, only=["conv1*"])


def test_a_string_is_one_pattern() -> None:
    """As characters, the `*` of "down*" would match every unit."""
    _, graph, scores, pairs = mixed(10)
    assert RankSettings(only="wid*", exclude="x").only == ("wid*",)  # type: ignore[arg-type]
    assert set(pr.sensitivity(graph, scores, pairs, only="down*").tried) == {"down:in", "down:out"}
    assert "down:in" not in pr.sensitivity(graph, scores, pairs, exclude="down*").tried


def test_linear_layers_over_tokens_are_pruned_like_convolutions() -> None:
    """Heads, hidden channels and selections of a transformer; not what its classifier reads."""
    model, image = Transformer("fused").eval(), IMAGE.float()
    graph = pr.trace(model, image)
    assert set(candidates(graph)) == {"attention.qkv:in", "attention.qkv:out", "up:in", "up:out"}
