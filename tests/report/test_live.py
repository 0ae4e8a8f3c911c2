"""The page of a run at work: progress that is that of the files, written while the run goes on."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from prunus.report import live
from prunus.report.live import render_progress, watching, write_progress
from prunus.report.read import read_unfinished
from tests.report.runs import Page, charts, read


@pytest.fixture
def halfway(compressed: Any, tmp_path: Path) -> Path:
    """A run after its first round, in the second epoch of the next, as a killed process leaves it."""
    folder = Path(shutil.copytree(compressed.folder, tmp_path / "run"))
    (folder / "summary.json").unlink()
    epochs = read(folder / "round-01" / "round.json")["retraining"]
    shutil.rmtree(folder / "round-02")
    journal = folder / "round-02" / "checkpoint" / "metrics.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(f"{json.dumps({**epochs[0], 'number': n, 'loss': n / 4})}\n" for n in (1, 2)))
    words = {"phase": "round 2: retrain", "done": 30, "total": 120, "note": "loss 0.5", "time": time.time()}
    (folder / "progress.json").write_text(json.dumps(words))
    return folder


def test_the_page_has_the_progress_of_the_run(halfway: Path) -> None:
    page = write_progress(halfway).read_text(encoding="utf-8")
    text, done = Page(page).text, read(halfway / "round-01" / "round.json")
    assert "resnet8 on folder:pictures: round 2 is at work" in text
    assert "round 2: retrain: 30 of 120" in text and "loss 0.5" in text
    assert "1 round so far" in text and f"{100 * done['after']['quality']:.2f}%" in text
    macs = read(halfway / "base.json")["macs"]
    assert f"{100 * (1 - done['macs'] / macs):.1f}%" in text and len(charts(page, "rounds")) == 1
    assert "Retraining in round 2" in text and "0.2500" in text and "0.5000" in text
    assert '<meta http-equiv="refresh" content="3">' in page
    assert "If it stops prunus prune --resume" in text


def test_a_run_that_says_nothing_more(halfway: Path) -> None:
    run = read_unfinished(halfway)
    assert run.doing is not None
    later = Page(render_progress(run, run.doing.time + 300)).text
    assert "Last sign of life 5 min 0 s ago. The run may have been interrupted." in later
    (halfway / "progress.json").unlink()
    assert "It may have been interrupted" in Page(write_progress(halfway).read_text(encoding="utf-8")).text


def test_a_page_stays_while_a_file_is_damaged(halfway: Path) -> None:
    page = write_progress(halfway).read_bytes()
    (halfway / "base.json").write_text("{")
    assert write_progress(halfway).read_bytes() == page


def test_it_is_written_again_and_again_until_the_run_has_finished(
    halfway: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.01)
    (halfway / "report.html").unlink(missing_ok=True)
    config = (halfway / "config.json").read_bytes()
    (halfway / "config.json").unlink()  # the run has not begun

    def wait_for_page() -> None:
        end = time.monotonic() + 60
        while not page.exists():
            assert time.monotonic() < end
            time.sleep(0.01)

    with watching(halfway) as page:
        time.sleep(0.05)
        assert page == halfway / "report.html" and not page.exists()
        (halfway / "config.json").write_bytes(config)
        for _ in range(2):
            wait_for_page()
            page.unlink()
        (halfway / "summary.json").write_text("{}")
    page.unlink(missing_ok=True)
    with watching(halfway):
        time.sleep(0.05)
    assert not page.exists()  # a finished run has its report, which is not overwritten
