"""Metrics by name, with options in the name, or as functions."""

from __future__ import annotations

from typing import Any

import pytest

from prunus.scoring.choice import choose_metrics, without_classes
from prunus.scoring.metrics import METRICS


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


def test_the_reasons_why_metrics_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    every = choose_metrics(list(METRICS))
    kept = {one.name for one in without_classes(every, "segmentation")}
    assert set(METRICS) - kept == {"dcp", "di", "mmd"}
    assert "dcp, di, mmd left out: each is only for classification, with one class per image" in caplog.text
    assert "separates classes" not in caplog.text
    kept -= {one.name for one in without_classes(every, "regression")}
    assert "abs_snr, fdr, gsd, gsd_reader, ttest left out: each separates classes" in caplog.text
    assert kept == {"abs_snr", "fdr", "gsd", "gsd_reader", "ttest"}
