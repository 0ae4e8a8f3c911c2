"""Folders and files that are missing, cut off or foreign: an error that names them, and the old report stays."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prunus.errors import FileError, RunError
from prunus.report.compare import compare
from prunus.report.run_page import write_report
from tests.report.runs import read
from tests.report.test_study_page import make_study

NEEDED = (
    "config.json summary.json plan.json round-01/round.json round-01/scores.json round-01/scores.safetensors "
    "round-01/sensitivity.json round-01/step-plan.json round-01/plan.json round-02/step-plan.json"
)


@pytest.mark.parametrize("name", NEEDED.split())
def test_a_file_that_is_cut_off_or_missing_is_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    (run / "report.html").write_text("the old one")
    if name != "round-01/round.json":  # which only tells that the round has finished
        (run / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(FileError, match=re.escape(str(run))):
            write_report(run)
    (run / name).unlink()
    with pytest.raises(FileError, match=Path(name).stem.split(".")[0]) as caught:
        write_report(run)
    assert name != "summary.json" or "prunus prune --resume" in str(caught.value)
    assert (run / "report.html").read_text() == "the old one" and not list(run.glob(".report*"))


def test_not_a_run_or_study(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a folder"):
        write_report(tmp_path / "nothing")
    with pytest.raises(FileError, match=r"no config\.json"):
        write_report(tmp_path)


def test_what_is_missing_in_a_study_is_named(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", pictures=False)
    content = read(study / "study.json")
    for key in ("title", "rows", "columns", "pictures", "notes", "asked", "command", "versions"):
        (study / "study.json").write_text(json.dumps({k: v for k, v in content.items() if k != key}))
        with pytest.raises(FileError, match=rf"study\.json.*'{key}' is missing"):
            write_report(study)


def test_studies_without_a_picture_or_a_result(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    (study / "report.html").write_text("the old one")
    for name in ("accuracy.svg", "accuracy.png"):
        (study / name).unlink()
    with pytest.raises(FileError, match=r"accuracy\.svg is missing"):
        write_report(study)
    (study / "study.json").unlink()
    with pytest.raises(FileError, match="not finished; run the same command again"):
        write_report(study)
    assert (study / "report.html").read_text() == "the old one"


@pytest.mark.parametrize(
    ("runs", "error", "text"),
    [
        (lambda run: [run, run / "nowhere"], FileError, "does not exist"),
        (lambda run: [run / "config.json"], FileError, "is a file"),
        (lambda run: [run / "empty"], FileError, r"holds no run \(it has no config.json\)"),
        (lambda run: [run / "round-01"], FileError, "holds a round of a pruning run"),
        (lambda run: [run, run / "."], RunError, "named twice"),
        (str, RunError, "list of folders"),
        (lambda _: [], RunError, "list of folders"),
        (lambda run: [run], RunError, "holds a pruning run; write the comparison to another folder"),
    ],
)
def test_what_cannot_be_compared(run: Path, runs: Any, error: type[Exception], text: str) -> None:
    (run / "empty").mkdir()
    with pytest.raises(error, match=text):
        compare(runs(run), out=run)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("summary.json", "format", "other", 'expected JSON with "format": "prunus-summary"'),
        ("summary.json", "version", 1, "has version 1; this prunus reads version 2"),
        ("summary.json", "units", {"a": {"width": 3}}, "units.a: 'kind' is missing"),
        ("summary.json", "before", {}, "before: 'holdout' is missing"),
        ("summary.json", "layers", [1], "layers: expected an object"),
        ("classes.json", "sizes", [15], "3 values for 1 classes"),
        ("network.json", "nodes", [{"kind": "layer"}], r"has unexpected content: nodes\[0\]"),
        ("config.json", "command", "prune", "should be an object"),
        ("config.json", "settings", {"colour": "blue"}, "no setting 'colour'"),
        ("config.json", "settings", {"target": "half"}, "target is 'half', not a number"),
    ],
)
def test_content_of_another_shape(run: Path, name: str, key: str, value: object, words: str) -> None:
    (run / name).write_text(json.dumps({**read(run / name), key: value}))
    with pytest.raises(FileError, match=words) as caught:
        write_report(run)
    assert str(run / name) in str(caught.value)


def test_plans_and_scores_that_do_not_agree(run: Path) -> None:
    for name in ("scores.json", "scores.safetensors"):
        (run / "round-02" / name).write_bytes((run / "round-01" / name).read_bytes())
    with pytest.raises(FileError, match=r"round-02.*do not agree about unit"):
        write_report(run)
