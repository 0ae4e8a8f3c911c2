"""Trackers: real TensorBoard event files have the figures of the history, and what is missing is said."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
from accelerate import tracking as accelerate_trackers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from prunus.errors import RunError
from prunus.run.compress import compress
from prunus.tasks.evaluate import Evaluation
from prunus.train import trackers
from prunus.train.fit import fit
from prunus.train.trackers import tag, tracking
from tests.run.toys import HOLDOUT, TRAIN, trained
from tests.train.test_fit import STEPS, batches, network


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) in the event files of a folder, as TensorBoard itself reads them."""
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {name: [(each.step, each.value) for each in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_epochs_of_training(tmp_path: Path) -> None:
    def own(*_: Any) -> Evaluation:
        return Evaluation(0.5, math.nan, 8)

    options: dict[str, Any] = {"preset": STEPS, "checkpoint_dir": tmp_path, "evaluate": own, "tracker": "tensorboard"}
    history = fit(network(), batches(2), [], epochs=2, **options).history
    found = scalars(tmp_path)
    assert found["train/loss"] == [(e.number, pytest.approx(e.loss)) for e in history] and len(history) == 2
    assert found["train/lr"] == [(e.number, pytest.approx(e.lr)) for e in history]
    assert found["train/accuracy"] == [(e.number, pytest.approx(e.quality)) for e in history]
    assert found["holdout/accuracy"] == [(1, 0.5), (2, 0.5)]
    assert "holdout/loss" not in found  # it is not a number


def test_rounds_plans_and_result_of_a_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": 0.4, "rounds": 2, "metric": "l1", "repair": "none", "epochs": 2, "lr": 0.02}
    options |= {"test": HOLDOUT, "timing": False}
    done = compress(trained(), TRAIN, HOLDOUT, folder=tmp_path / "run", tracker="tensorboard", **options)
    found = scalars(tmp_path / "run")
    rounds = done.rounds
    assert len(rounds) >= 2
    before = done.summary["before"]
    assert found["round/macs"] == [(0, before["macs"]), *((r.number, r.macs) for r in rounds)]
    assert found["round/holdout_accuracy"] == [
        (0, pytest.approx(before["holdout"]["quality"])),
        *((r.number, pytest.approx(r.after.quality)) for r in rounds),
    ]
    epochs = [epoch for r in rounds for epoch in r.retraining]
    assert found["train/loss"] == [(step, pytest.approx(e.loss)) for step, e in enumerate(epochs, start=1)]
    for unit, kept in done.plan.keep.items():
        assert found[f"plan/{tag(unit)}"][-1] == (len(rounds), len(kept))
    assert found["result/test_accuracy_after"][0][1] == pytest.approx(done.summary["after"]["test"]["quality"])
    config = (tmp_path / "run" / "config.json").read_text()
    assert "tracker" not in config
    again = compress(trained(), TRAIN, HOLDOUT, folder=tmp_path / "run", **options)  # without it: the same run
    assert again.summary["after"] == done.summary["after"]


def test_what_cannot_be_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="there is no tracker called 'tensorbord': did you mean tensorboard"):
        fit(network(), batches(1), preset=STEPS, epochs=1, tracker="tensorbord")
    with pytest.raises(RunError, match="tensorboard writes files: give the run a folder"):
        fit(network(), batches(1), preset=STEPS, epochs=1, tracker="tensorboard")
    with pytest.raises(RunError, match="tensorboard writes files: give the run a folder"):
        compress(trained(), TRAIN, HOLDOUT, target=0.4, epochs=0, tracker="tensorboard")
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: [])
    with pytest.raises(RunError, match=r"tensorboard is not installed: pip install 'prunus\[trackers\]'"):
        trackers.check_tracker("tensorboard")
    with pytest.raises(RunError, match="the tracker wandb is not installed: pip install wandb"):
        fit(network(), batches(1), preset=STEPS, epochs=1, tracker="wandb")


def test_a_tracker_without_files_and_one_that_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any tracker of Accelerate: it is begun with the first figures, and finished whatever happens."""
    kind = MagicMock(requires_logging_directory=False)
    monkeypatch.setitem(accelerate_trackers.LOGGER_TYPE_TO_CLASS, "own", kind)
    monkeypatch.setattr(accelerate_trackers, "get_available_trackers", lambda: ["own"])
    with tracking("own", None, {}):
        pass
    assert not kind.called
    with pytest.raises(ZeroDivisionError), tracking("own", None, {"only": ("a",), "epochs": 3}) as log:
        log({"plan/conv1:out": 4, "loss": math.inf, "none": None}, 2)
        raise ZeroDivisionError
    assert kind.mock_calls == [
        call("prunus"),
        call().start(),
        call().store_init_configuration({"only": "('a',)", "epochs": 3}),
        call().log({"plan/conv1.out": 4}, step=2),
        call().finish(),
    ]
