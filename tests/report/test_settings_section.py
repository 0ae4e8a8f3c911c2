"""Settings on the page: taken from their declarations and the registries, not from a list in the report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from prunus.report.run_page import all_settings, chosen_settings
from prunus.score.metrics import METRICS
from prunus.util.options import option
from tests.report.runs import Page


def own(model: Any) -> None:
    """A function of the user's own."""


@dataclass(frozen=True)
class Kitchen:
    seed: int = option(0, "Seed", group="Output")
    target: float | None = option(None, "A goal, which has a sentence of its own", group="Goal")
    metric: str = option("l1", "Metric", group="Channels", choices=METRICS, with_options=True)
    only: tuple[str, ...] = option((), "Patterns", group="Layers")
    lr: float | None = option(None, "Learning <rate>", group="Retraining")
    distill: bool = option(False, "Teacher", group="Retraining")
    fit: Any = option(None, "Own retraining", group="Retraining", hidden=True)
    options: dict[str, float] = option({}, "More", group="Spices")


def test_only_what_was_chosen_or_changed_is_told() -> None:
    metric = f"metric l1: {METRICS.help('l1')}"
    assert chosen_settings(Kitchen()) == {"Channels": [metric]}
    changed = Kitchen(3, 0.5, "l1", ("a", "b", "c", "d", "e", "f"), 0.020, True, own, {"ridge": 0.5})
    assert chosen_settings(changed) == {
        "Channels": [metric],
        "Layers": ["only a, b, c, d and 2 more"],
        "Retraining": ["lr 0.02, distill yes, fit own"],
        "Output": ["seed 3"],
        "Spices": ["options ridge 0.5"],
    }
    assert list(chosen_settings(changed)) == ["Channels", "Layers", "Retraining", "Output", "Spices"]


def test_a_metric_with_options_has_its_line_of_help() -> None:
    assert chosen_settings(Kitchen(metric="gsd:ridge=0")) == {
        "Channels": ["metric gsd:ridge=0: Generalised symmetric divergence, the paper's metric"]
    }


def test_the_table_has_every_setting() -> None:
    table = all_settings(Kitchen(lr=0.1))
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    assert [row[1] for row in rows] == ["target", "metric", "only", "lr", "distill", "fit", "seed", "options"]
    assert rows[3] == ["Retraining", "lr", "0.1", "changed", "Learning &lt;rate&gt;"]
    assert rows[0] == ["Goal", "target", "–", "", "A goal, which has a sentence of its own"]
    assert "All settings" in Page(table).text
