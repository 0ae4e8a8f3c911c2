"""Metrics by name, with options in the name, or as functions."""

from __future__ import annotations

from typing import Any

import pytest

from prunus.errors import ScoreError
from prunus.score.choice import choose_metrics
from prunus.score.metrics import METRICS


def largest(channels: Any) -> Any:
    return channels.moments.mean.max(0).values


def test_names_options_and_own_functions() -> None:
    found = choose_metrics(["gsd", "gsd:ridge=0.5:tap=before_activation", largest, "gsd", "mmd:sigma=median", "l1"])
    names = ["gsd", "gsd:ridge=0.5:tap=before_activation", "largest", "mmd:sigma=median", "l1"]
    assert [one.name for one in found] == names  # each once
    assert [one.metric.name for one in found] == ["gsd", "gsd", "largest", "mmd", "l1"]
    assert [one.options for one in found] == [{}, {"ridge": 0.5}, {}, {"sigma": "median"}, {}]
    moments = ["moments-reader", "moments-before_activation", "moments-reader"]
    assert [one.shares for one in found] == [*moments, "maps-reader", "filters"]


def test_options_go_to_the_metrics_that_have_them() -> None:
    found = choose_metrics(["gsd", "l1", "random", "fdr:ridge=2"], {"ridge": 0.1}, seed=7)
    assert [dict(one.options) for one in found] == [{"ridge": 0.1}, {}, {"seed": 7}, {"ridge": 2.0}]
    again = choose_metrics(found, seed=8)  # chosen ones are taken as they are
    assert [one.name for one in again] == ["gsd", "l1", "random", "fdr:ridge=2"] and again[3].options == {"ridge": 2.0}


def test_all_stands_for_every_metric() -> None:
    assert [one.name for one in choose_metrics(["all"])] == list(METRICS)


@pytest.mark.parametrize(
    ("metrics", "options", "words"),
    [
        (["gds"], {}, "no metric called 'gds': did you mean gsd"),
        (["gsd:ridge"], {}, "must be NAME=VALUE, as in ridge=0.5, got 'ridge'"),
        (["gsd:ridge=0:ridge=1"], {}, "the option ridge is given twice: '0' and '1'; give it once"),
        (["gsd:tap=reader:tap=reader"], {}, "the option tap is given twice"),
        (["gsd:rho=1"], {}, "gsd has no option 'rho'; available: ridge, tap"),
        (["l1:tap=reader"], {}, "no option 'tap'; available: none"),
        (["gsd:tap=here"], {}, "tap must be reader or before_activation, got 'here'"),
        (["gsd", "l1"], {"rho": 1}, "gsd, l1 has no option 'rho'"),
        ([3], {}, "must be a name or a function, got int"),
        ([], {}, "no metric is given"),
    ],
)
def test_mistakes_are_said_before_any_pass(metrics: list[Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ScoreError, match=words):
        choose_metrics(metrics, options=options)
