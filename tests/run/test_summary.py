"""A finished run in numbers: notes, the short table, and the quality of each class."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import Tensor, nn

from prunus.run.compress import compress
from prunus.run.final_timing import EngineSpeed
from prunus.run.settings import Settings
from prunus.run.summary import Beginning, NetworkFigures, Summary, goal_result
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import ACCURACY
from prunus.util.typed_json import to_data
from tests.run.toys import HOLDOUT, TRAIN, run, trained


def test_a_drop_is_said_in_points_and_a_result_prints_as_a_short_table() -> None:
    result = run(ratio=0.6, epochs=0)
    before, after = (100 * result.summary[side]["holdout"]["quality"] for side in ("before", "after"))
    assert before - after > 1 and after == 100 * result.rounds[-1].after.quality
    assert result.summary["notes"] == [
        f"The held-out accuracy is {before - after:.2f} points lower than before pruning."
    ]
    lines = repr(result).splitlines()
    assert lines[0].endswith(f", {before:.2f}% -> {after:.2f}% held-out accuracy")
    assert lines[1] == result.summary["goal"]["text"] and result.reached and lines[1].startswith("Goal reached: ")
    rows = [line.split() for line in lines]
    assert ["held-out", "accuracy", f"{before:.2f}%", f"{after:.2f}%"] in [row[:4] for row in rows]


def test_own_fit_that_makes_it_worse_is_kept_and_said() -> None:
    def spoil(model: nn.Module, _train: Any, _holdout: Any) -> nn.Module:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        return model

    result = run(ratio=0.2, fit=spoil)
    now = 100 * result.rounds[0].after.quality
    assert result.summary["notes"][0].startswith("Round 1: your own fit lowered the held-out accuracy from")
    assert result.summary["notes"][0].endswith(f"to {now:.2f}%.")


def pixels(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Images whose three bands of brightness are the classes of their pixels."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 8, 8, generator=draw)
    return [(images, (3 * images[:, 0]).long().clamp(max=2))]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))


def test_segmentation_has_the_overlap_of_each_class(tmp_path: Path) -> None:
    holdout = pixels(6, seed=1)
    words: dict[str, Any] = {"task": "segmentation", "ratio": 0.4, "metric": "l1", "repair": "none", "timing": False}
    done = compress(network(), pixels(8, seed=0), holdout, folder=tmp_path, **words)
    found = json.loads((tmp_path / "classes.json").read_text())
    assert (found["part"], found["quality"], found["of"], found["names"]) == ("holdout", "IoU", "pixels", None)
    ((images, labels),) = holdout
    with torch.no_grad():
        said = done.model.eval()(images).argmax(1)
    wanted = jaccard_score(labels.flatten().numpy(), said.flatten().numpy(), average=None, zero_division=0)
    assert found["after"]["values"] == pytest.approx(wanted.tolist())
    assert found["sizes"] == torch.bincount(labels.flatten(), minlength=3).tolist()
    assert done.summary["after"]["holdout"]["quality"] == pytest.approx(wanted.mean())


def test_an_evaluation_of_ones_own_has_no_classes(tmp_path: Path) -> None:
    own = lambda model, loader: Evaluation(0.5, 0.0, 8)
    words: dict[str, Any] = {"ratio": 0.3, "metric": "l1", "repair": "none", "timing": False, "evaluate": own}
    compress(trained(), TRAIN, HOLDOUT, test=HOLDOUT, folder=tmp_path, **words)
    assert not (tmp_path / "classes.json").exists()


WAS = NetworkFigures(Evaluation(0.96, 0.1, 50), None, 1000, 400, 2000)
NOW = NetworkFigures(Evaluation(0.95, 0.1, 50), None, 500, 100, 600)


def at(ratio: float, low: float, high: float) -> tuple[EngineSpeed, ...]:
    """The final timing of a goal in time."""
    return (EngineSpeed("eager", 1, 1, 1.0, 1 / ratio, ratio, low, high, "processor"),)


HALF = "50.0% of the MACs removed, 50.0% asked"
LOSES = "it loses more than 0.5 points of held-out accuracy"
WITHIN = "the interval 1.47 to 1.55 contains"
BEST = "no split that was tried is faster"
ASKED = "as fast in eager at batch 1, 1.5x asked"


@pytest.mark.parametrize(
    ("goal", "speeds", "value", "text"),
    [
        ({"target": 0.5}, (), 0.5, f"Goal reached: {HALF}."),
        ({"target": 0.6}, (), 0.5, "Goal not reached: 50.0% of the MACs removed, 60.0% asked."),
        ({"params": 100.0}, (), 100.0, "Goal reached: 100 weights left, 100 asked."),
        ({"macs": 400.0}, (), 500.0, "Goal not reached: 500 MACs left, 400 asked."),
        ({"ratio": 0.4}, (), 0.25, "Goal reached: 25.0% of all channels removed, 40.0% of every unit asked."),
        ({"max_drop": 2.0}, (), 1.0, "Goal reached: 1.00 points of held-out accuracy lost, at most 2 allowed."),
        (
            {"target": 0.5, "max_drop": 0.5},
            (),
            0.5,
            f"Goal not reached: {HALF}; {LOSES}.",
        ),
        ({"speedup": 1.5}, at(1.6, 1.55, 1.65), 1.6, f"Goal reached: 1.60x {ASKED}."),
        ({"speedup": 1.5}, at(1.49, 1.47, 1.55), 1.49, f"Goal reached: 1.49x {ASKED}, which {WITHIN}."),
        ({"speedup": 1.5}, at(1.4, 1.35, 1.45), 1.4, f"Goal not reached: 1.40x {ASKED}; {BEST}."),
        ({"speedup": 1.5}, (), 1.0, "Goal not reached: 1.00x predicted, 1.5x asked; it could not be measured."),
    ],
)
def test_goals_by_hand(goal: dict[str, float], speeds: tuple[EngineSpeed, ...], value: float, text: str) -> None:
    """A point of accuracy, half of the MACs, three quarters of the weights and a quarter of the channels are gone."""
    found = goal_result(Settings(**goal, engine="eager"), WAS, NOW, ACCURACY, 0.25, speeds)  # type: ignore[arg-type]
    assert (found.value, found.text) == (pytest.approx(value), text)
    assert found.reached == text.startswith("Goal reached")


def test_a_run_that_goes_on_is_measured_since_the_original() -> None:
    later = {"start": {"original": to_data(Beginning(WAS, at(1.5, 1.4, 1.6)))}}
    summary = cast(Summary, SimpleNamespace(before=NOW, speeds=at(2.0, 1.5, 2.5)))
    whole = Beginning.of(later, summary)
    assert whole.before == WAS
    (speed,) = whole.speeds
    assert (speed.ratio, speed.low, speed.high) == pytest.approx((3.0, 2.1, 4.0))
    assert Beginning.of({}, summary) == Beginning(NOW, summary.speeds)
    elsewhere = {"start": {"original": to_data(Beginning(WAS, ()))}}  # the earlier run was not timed
    assert Beginning.of(elsewhere, summary) == Beginning(WAS, ())
