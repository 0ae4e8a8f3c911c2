"""Files that are missing, cut off or foreign: a FileError that names them, and the old report stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.errors import FileError
from prunus.report.run_page import write_report
from tests.report.runs import read

NEEDED = (
    "config.json summary.json plan.json round-01/round.json round-01/scores.json round-01/scores.safetensors "
    "round-01/sensitivity.json round-01/step-plan.json round-01/plan.json round-02/step-plan.json"
)


@pytest.mark.parametrize("name", NEEDED.split())
def test_a_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    (run / "report.html").write_text("the old one")
    with pytest.raises(FileError, match=Path(name).stem.split(".")[0]):
        write_report(run)
    assert (run / "report.html").read_text() == "the old one"
    assert not list(run.glob(".report*"))


@pytest.mark.parametrize("name", [name for name in NEEDED.split() if name != "round-01/round.json"])
def test_a_file_that_was_cut_off_is_named(run: Path, name: str) -> None:
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(FileError) as caught:
        write_report(run)
    assert str(run) in str(caught.value)


def test_an_unfinished_run_says_how_to_go_on(run: Path) -> None:
    (run / "summary.json").unlink()
    with pytest.raises(FileError, match=r"not finished.*prunus prune --resume"):
        write_report(run)


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a folder"):
        write_report(tmp_path / "nothing")
    with pytest.raises(FileError, match=r"no config\.json"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("summary.json", "format", "other", 'expected JSON with "format": "prunus-summary"'),
        ("summary.json", "version", 2, "has version 2; this prunus reads version 1"),
        ("summary.json", "units", {"a": {"width": 3}}, "units.a: 'kind' is missing"),
        ("summary.json", "before", {}, "before: 'holdout' is missing"),
        ("summary.json", "layers", [1], "layers: expected an object"),
        ("classes.json", "sizes", [15], "3 values for 1 classes"),
        ("network.json", "nodes", [{"kind": "layer"}], "has unexpected content: 'name' is missing"),
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
