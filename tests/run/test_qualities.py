"""Runs for an engine that computes in 8-bit integers: the quality of the quantised networks beside that in 32 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prunus.errors import ModelError
from prunus.report.read import read_run
from prunus.report.run_page import render
from prunus.run import qualities
from prunus.run.compress import Compressed, compress
from prunus.run.qualities import Int8Quality
from prunus.run.settings import Settings
from prunus.run.summary import NetworkFigures, goal_result, headline, read_summary
from prunus.ship.int8 import export_int8
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import ACCURACY
from tests.run.toys import EXAMPLE, HOLDOUT, QUICK, TEST, TRAIN, trained

WORDS: dict[str, Any] = {**QUICK, "epochs": 0, "ratio": 0.4, "metric": "l1", "repair": "solve"}
WORDS |= {"engine": "onnxruntime-int8", "num_repair_images": 1000}  # so that all images are for the repair


def pruned(folder: Path, **changes: Any) -> Compressed:
    return compress(trained(), TRAIN, HOLDOUT, test=TEST, folder=folder, **{**WORDS, **changes})


def test_the_quality_in_integers_is_that_of_the_exported_files(tmp_path: Path) -> None:
    result = pruned(tmp_path / "run")
    for side, model, part, images in (("before", trained(), "holdout", HOLDOUT), ("after", result.model, "test", TEST)):
        # Another way to the same file: another exporter, batch norms folded before it, all 192 training images.
        file = export_int8(model, EXAMPLE, tmp_path / "a.onnx", TRAIN, images, max_drop=100)
        found, count = result.summary[side]["int8"][part], file.after.num_images
        assert found["num_images"] == count and abs(found["quality"] - file.after.quality) <= 2 / count
    summary = read_summary(result.summary)
    rows = {row[0]: row for row in headline(summary)}
    int8 = summary.after.int8
    assert int8 is not None and rows["held-out accuracy in int8"][2] == f"{100 * int8.holdout.quality:.2f}%"
    assert rows["held-out accuracy"][2] == f"{100 * summary.after.holdout.quality:.2f}%"
    assert int8.test is not None
    assert repr(result).splitlines()[0].endswith(f"{100 * int8.test.quality:.2f}% test accuracy in 8-bit integers")
    page = render(read_run(tmp_path / "run"))
    assert "Held-out accuracy in int8" in page and "Test accuracy in int8" in page and "Bytes of activations" in page


def test_a_run_that_is_resumed_measures_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pruned(tmp_path / "run").summary

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(qualities, "QuantisedNetwork", stop)
        pruned(tmp_path / "other")
    again = pruned(tmp_path / "other").summary
    assert again["after"]["int8"] == whole["after"]["int8"] and again["before"]["int8"] == whole["before"]["int8"]


def test_a_network_that_cannot_be_quantised_is_a_note_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ModelError("no kernel for Loop")

    monkeypatch.setattr(qualities, "QuantisedNetwork", fail)
    summary = pruned(tmp_path / "run").summary
    assert summary["after"]["int8"] is None
    assert "The accuracy in onnxruntime-int8 is not known: no kernel for Loop" in summary["notes"]


def test_max_drop_is_about_the_network_in_integers() -> None:
    def figures(quality: float, in_integers: float) -> NetworkFigures:
        int8 = Int8Quality(Evaluation(in_integers, 0.0, 100), None)
        return NetworkFigures(Evaluation(quality, 0.0, 100), None, 10, 10, 10, None, int8)

    settings = Settings(max_drop=1.0)
    found = goal_result(settings, figures(0.9, 0.89), figures(0.9, 0.87), ACCURACY, 0.2)
    assert not found.reached and "2.00 points of held-out accuracy in 8-bit integers lost" in found.text
    assert goal_result(settings, figures(0.9, 0.89), figures(0.8, 0.885), ACCURACY, 0.2).reached
