"""progress.json: the last report of a run at work, gone when it ends, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.run import folder as heartbeat
from prunus.run.folder import RunFolder, reporting


def test_the_last_report_is_there_while_the_run_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS", 0.0)
    heard = []
    folder, path = RunFolder(tmp_path), tmp_path / "progress.json"
    with pytest.raises(KeyboardInterrupt), reporting(lambda *words: heard.append(words), folder) as report:
        report("evaluate", 0, 1, "")
        assert not path.exists()  # a folder that is not a run yet is not touched
        (tmp_path / "config.json").write_text("{}")
        report("round 1: score", 3, 12, "fast")
        found = json.loads(path.read_text())
        assert {**found, "time": 0} == {"phase": "round 1: score", "done": 3, "total": 12, "note": "fast", "time": 0}
        raise KeyboardInterrupt
    assert not path.exists()
    assert heard == [("evaluate", 0, 1, ""), ("round 1: score", 3, 12, "fast")]


def test_a_run_that_was_refused_leaves_the_note_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("of another process")
    with reporting(False, RunFolder(tmp_path)):
        pass
    assert (tmp_path / "progress.json").read_text() == "of another process"


def test_a_note_that_cannot_be_written_does_not_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "progress.json").mkdir()
    (tmp_path / "progress.json" / "in the way").write_text("")
    with reporting(False, RunFolder(tmp_path)) as report:
        report("score", 1, 2, "")
