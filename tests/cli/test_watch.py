"""`prunus watch` and `prune --watch`: they say where, show the run at work, and end with it."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from prunus.cli import watch
from prunus.report.live import LiveServer
from prunus.run import round as rounds
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A run with --watch: its folder, what it printed, and the pages that a browser got while it was at work."""
    folder = tmp_path_factory.mktemp("live")
    save_file(create("lenet5", num_classes=10, in_channels=1).state_dict(), folder / "w.safetensors")
    pages: list[str] = []
    servers: list[LiveServer] = []
    start, plan_round = LiveServer.start, rounds.plan_round

    def started(self: LiveServer) -> None:
        start(self)
        servers.append(self)

    def looked(*words: Any) -> Any:
        with urllib.request.urlopen(servers[0].address, timeout=10) as answer:
            pages.append(answer.read().decode())
        return plan_round(*words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveServer, "start", started)
        patch.setattr(rounds, "plan_round", looked)
        patch.setattr("prunus.report.live.FAREWELL", 0.2)
        words = ["--data", "digits", "--num-images", "50", "--metric", "l1", "--repair", "none", "--target", "0.4"]
        words += ["--rounds", "2", "--epochs", "0", "--device", "cpu", "--watch"]
        said = lines(prunus("prune", "lenet5", "--weights", folder / "w.safetensors", *words, "--out", folder / "run"))
    return folder / "run", said, pages


def test_a_run_can_be_watched(done: tuple[Path, list[str], list[str]]) -> None:
    folder, said, pages = done
    address = next(line for line in said if line.startswith("watch it: http://127.0.0.1:")).partition(": ")[2]
    assert len(pages) == 2 and "No round is finished yet" in pages[0] and "1 round so far" in pages[1]
    assert "lenet5 on digits: round 2 is at work" in pages[1]
    with pytest.raises(urllib.error.URLError):  # it has ended with the run
        urllib.request.urlopen(address, timeout=5)
    assert (folder / "report.html").exists() and not (folder / "progress.json").exists()
    assert "--watch" not in (folder / "config.json").read_text()


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
    assert re.fullmatch(r"watch it: http://127\.0\.0\.1:\d+/", where) and ended == f"the run has finished: {folder}"

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
    assert prunus("watch", tmp_path, "--port", "70000").exit_code == 2
