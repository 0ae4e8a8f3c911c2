"""Patterns that choose units."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prunus as pr
from prunus.deciding.sensitivity import sensitivity
from prunus.deciding.settings import RankSettings
from prunus.deciding.widths import candidates, check_patterns
from prunus.zoo.models import create
from tests.deciding.toys import Mixed, mixed, seeded
from tests.graph.test_attention import IMAGE, Transformer
from tests.nets import NETS


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
