"""Patterns that choose units: one as a string, ones that match nothing, and networks where nothing is left."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
import torch
from torch import nn

import prunus as sc
from prunus.decide.candidates import candidates, check_patterns
from prunus.decide.settings import RankSettings
from prunus.errors import DecideError
from prunus.zoo.models import create
from tests.run.toys import HOLDOUT, TRAIN, run, trained

EXAMPLE = torch.zeros(1, 3, 6, 6)


def test_a_string_is_one_pattern(tmp_path: Path) -> None:
    """As characters, the `*` of "wid*" would match every unit."""
    assert RankSettings(only="wid*", exclude="x").only == ("wid*",)  # type: ignore[arg-type]
    result = run(tmp_path, only="wid*", target=0.05, epochs=0, rounds=1)
    cut = {name for name, lost in result.plan.removed().items() if lost}
    assert cut and all(fnmatch.fnmatch(name, "wid*") for name in cut)


def test_a_string_is_one_pattern_for_sensitivity() -> None:
    graph = sc.trace(trained(), EXAMPLE)
    scores = sc.score(graph, TRAIN, metric="l1")
    assert set(sc.sensitivity(graph, scores, HOLDOUT, only="wide*").tried) == {"wide:in", "wide:out"}
    assert set(sc.sensitivity(graph, scores, HOLDOUT, exclude="wide*").tried) == {"conv1:in", "conv1:out"}


@pytest.mark.parametrize("option", ["only", "exclude"])
def test_a_pattern_that_matches_nothing_names_the_nearest(option: str) -> None:
    graph = sc.trace(trained(), EXAMPLE)
    scores = sc.score(graph, TRAIN, metric="l1")
    complaint = rf"{option}: the pattern 'conv1:inn' matches no unit.*nearest names are conv1:in, "
    with pytest.raises(DecideError, match=complaint):
        run(target=0.1, **{option: ("wide*", "conv1:inn")})
    with pytest.raises(DecideError, match=complaint):
        sc.sensitivity(graph, scores, HOLDOUT, **{option: ("wide*", "conv1:inn")})
    with pytest.raises(DecideError, match=r"a string or several strings, got 3"):
        run(target=0.1, **{option: 3})


def test_the_name_of_a_block_gets_a_star() -> None:
    graph = sc.trace(create("resnet8"), torch.zeros(1, 3, 32, 32))
    with pytest.raises(DecideError, match=r"inside it, write 'layer1\.\*'"):
        check_patterns(graph, only=["layer1"])
    check_patterns(graph, only=["layer1.*"])


def test_a_frozen_layer_says_why_and_may_be_excluded() -> None:
    graph = sc.trace(trained(), EXAMPLE)
    assert "fc" in graph.frozen
    with pytest.raises(DecideError, match="only: fc cannot be pruned: "):
        check_patterns(graph, only=["fc"])
    check_patterns(graph, exclude=["fc"])


def test_units_of_the_original_network_still_match() -> None:
    """A unit at its last granule is no longer a unit of the smaller network; the pattern that names it stays valid."""
    check_patterns(sc.trace(trained(), EXAMPLE), exclude=["gone:out"], original=["gone:out"])


def test_a_network_without_convolutions_is_told_so() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    graph = sc.trace(linear, torch.zeros(1, 3, 2, 2))
    with pytest.raises(DecideError, match=r"Sequential has no convolutions.*name them with only="):
        candidates(graph)
    assert candidates(graph, only=["1*"])
    single = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten())
    with pytest.raises(DecideError, match=r"Sequential has no channels that can be removed. 0: "):
        candidates(sc.trace(single, torch.zeros(1, 3, 2, 2)))
