"""`prunus watch` and `prune --watch`: they say where the page is, show the run at work, and end with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from prunus.cli import watch
from prunus.report import live
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A run with --watch: its folder, what it printed, and the pages that were written while it was at work."""
    folder = tmp_path_factory.mktemp("live")
    save_file(create("lenet5", num_classes=10, in_channels=1).state_dict(), folder / "w.safetensors")
    pages: list[str] = []
    render = live.render_progress

    def rendered(*given: Any) -> str:
        pages.append(render(*given))
        return pages[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "render_progress", rendered)
        patch.setattr(live, "EVERY", 0.05)
        words = ["--data", "digits", "--num-images", "50", "--metric", "l1", "--repair", "none", "--target", "0.4"]
        words += ["--rounds", "2", "--epochs", "0", "--device", "cpu", "--watch"]
        said = lines(prunus("prune", "lenet5", "--weights", folder / "w.safetensors", *words, "--out", folder / "run"))
    return folder / "run", said, pages


def test_a_run_can_be_watched(done: tuple[Path, list[str], list[str]]) -> None:
    folder, said, pages = done
    assert f"watch it: {(folder / 'report.html').as_uri()} (open it in a browser)" in said
    assert any("No round is finished yet" in page for page in pages)
    assert any("1 round so far" in page and "lenet5 on digits: round 2 is at work" in page for page in pages)
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "What was removed:" in report and 'http-equiv="refresh"' not in report  # the report came last
    assert not (folder / "progress.json").exists() and "--watch" not in (folder / "config.json").read_text()


def test_watch_ends_with_the_run_or_when_told(
    done: tuple[Path, list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = done[0]
    (said,) = lines(prunus("watch", folder, columns=400))
    assert said == f"the run has finished: prunus report {folder}"
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()

    def finish(_: float) -> None:
        (folder / "summary.json").write_bytes(summary)

    monkeypatch.setattr(watch.time, "sleep", finish)
    where, ended = lines(prunus("watch", folder, columns=400))
    assert (
        re.fullmatch(r"watch it: file:///.*/report\.html \(open it in a browser\)", where)
        and ended == f"the run has finished: {folder}"
    )

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    (folder / "summary.json").unlink()
    monkeypatch.setattr(watch.time, "sleep", interrupt)
    assert lines(prunus("watch", folder))[-1] == "stopped watching; the run goes on"
    (folder / "summary.json").write_bytes(summary)


def test_what_cannot_be_watched(tmp_path: Path) -> None:
    result = prunus("watch", tmp_path, columns=400)
    assert result.exit_code == 1 and "holds no run; name the folder of a `prunus prune`" in result.stderr
    result = prunus("watch", tmp_path / "nothing", columns=400)
    assert result.exit_code == 1 and "does not exist" in result.stderr
