"""Settings: what is filled in where the user left it open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import prunus as pr
from prunus.errors import DecideError
from prunus.run.settings import Settings, check_settings, fill_defaults
from tests.run.toys import EXAMPLE, trained


@pytest.mark.parametrize(
    "given, split, metric",
    [
        ({}, "least_error", "rebuilt"),
        ({"epochs": 2}, "least_error", "rebuilt"),
        ({"epochs": 2, "metric": "gsd"}, "algorithm1", "gsd"),  # its scores are no errors
        ({"epochs": 2, "rounds": 2}, "algorithm1", "gsd_reader"),
        ({"repair": "none"}, "algorithm1", "gsd_reader"),
        ({"repair": "bn", "epochs": 3}, "algorithm1", "gsd_reader"),
    ],
)
def test_the_split_and_the_metric_suit_the_repair(given: dict[str, Any], split: str, metric: str) -> None:
    settings = Settings(target=0.3, **given)
    filled = fill_defaults(settings, pr.trace(trained(), EXAMPLE))
    assert (filled.split, filled.metric) == (split, metric)
    assert (filled.repair, filled.epochs) == (given.get("repair", "solve"), given.get("epochs", 0))


def test_nothing_but_epochs_starts_a_retraining() -> None:
    """A rate or a preset is taken when there are epochs; what could only be meant for a retraining is refused."""
    for given in ({}, {"lr": 0.01}, {"preset": "cifar"}, {"distill": False}, {"distill": True}, {"repair": "none"}):
        settings = Settings(target=0.3, **given)  # type: ignore[arg-type]
        check_settings(settings)
        assert settings.epochs == 0 and not settings.retrains_at_all
    for name, value in {"ema": 0.99, "mixed_precision": "bf16", "temperature": 2.0, "views": 2}.items():
        with pytest.raises(DecideError, match=f"{name} does nothing without retraining: give epochs as well"):
            check_settings(Settings(target=0.3, **{name: value}))  # type: ignore[arg-type]
        for more in ({"epochs": 1}, {"last_epochs": 2}):
            check_settings(Settings(target=0.3, **{name: value, **more}))  # type: ignore[arg-type]
    with pytest.raises(DecideError, match="temperature does nothing without a teacher: give distill"):
        check_settings(Settings(target=0.3, epochs=1, temperature=3.0, distill=False))


def test_what_is_left_open_depends_on_the_case() -> None:
    graph = pr.trace(trained(), EXAMPLE)
    for words, metric, trials, count in (
        ({"repair": "none"}, "gsd_reader", None, None),
        ({"repair": "solve", "epochs": 0}, "rebuilt", "repaired", 2000),
        ({"repair": "solve", "epochs": 1}, "gsd_reader", "cut", 500),
        ({"repair": "solve", "epochs": 0, "last_epochs": 2}, "gsd_reader", "cut", 500),  # retrained in the end
        ({"repair": "bn", "epochs": 0}, "gsd_reader", "cut", 500),
        ({"repair": "solve", "epochs": 0, "metric": "gsd", "trials": "cut", "num_repair_images": 9}, "gsd", "cut", 9),
        ({"repair": "bn", "trials": "repaired"}, "gsd_reader", "repaired", 500),
    ):
        found = fill_defaults(Settings(**words), graph)  # type: ignore[arg-type]
        assert (found.metric, found.trials, found.num_repair_images) == (metric, trials, count), words
    for given, teaches in (  # the unpruned network teaches a retraining unless told not to
        ({"epochs": 1}, True),
        ({"last_epochs": 1}, True),
        ({"epochs": 1, "repair": "none"}, True),
        ({"epochs": 1, "distill": False}, False),
        ({"epochs": 0}, False),
        ({"fit": lambda model, train, holdout: model}, False),
    ):
        assert fill_defaults(Settings(target=0.3, **given), graph).distill is teaches, given  # type: ignore[arg-type]
    solved = Settings(repair="solve", epochs=0)
    assert [fill_defaults(solved, graph, pixels).num_repair_images for pixels in (32 * 32, 224 * 224)] == [2000, 500]


@pytest.mark.parametrize(
    "asked", [{"cost": "latency"}, {"measure": "loss"}, {"exact": True}, {"k": 2}, {"trials": "cut"}]
)
def test_what_is_asked_of_a_ranking_gets_one(asked: dict[str, Any]) -> None:
    """Where a solve alone would take the split of least error, which ranks nothing; elsewhere it is refused."""
    graph = pr.trace(trained(), EXAMPLE)
    open_ = Settings(target=0.4, repair="solve", epochs=0)
    assert [fill_defaults(s, graph).split for s in (open_, replace(open_, **asked))] == ["least_error", "algorithm1"]
    for way, words in (('split "uniform"', {"target": 0.4, "split": "uniform"}), ("a ratio", {"ratio": 0.3})):
        with pytest.raises(DecideError, match=f"{way} ranks no units, so {next(iter(asked))} would have no effect"):
            check_settings(Settings(**{**words, **asked}))
        check_settings(Settings(**words))
