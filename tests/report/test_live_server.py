"""The server of a run at work: this machine only, one page only, and progress that is that of the files."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prunus.errors import RunError
from prunus.report import live as live_server
from prunus.report.live import LiveServer, page_of, render_progress
from prunus.report.read import read_unfinished
from tests.report.runs import Page, charts, read

SECRET = "the secret of another folder"


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


@pytest.fixture
def live(halfway: Path) -> Iterator[LiveServer]:
    server = LiveServer(halfway)
    server.start()
    yield server
    server.stop()


def ask(live: LiveServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    """Status and body. The path goes out as it is: http.client does not tidy it."""
    connection = http.client.HTTPConnection("127.0.0.1", live._server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host=host is not None)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_it_listens_on_this_machine_only(live: LiveServer) -> None:
    assert live._server.socket.getsockname()[0] == "127.0.0.1"
    assert live.address.startswith("http://127.0.0.1:")
    port = live._server.server_address[1]
    with socket.socket() as probe:  # another address of the same machine is not answered
        probe.settimeout(1)
        assert probe.connect_ex(("127.0.0.2", port)) != 0


def test_only_the_page_is_served(live: LiveServer, halfway: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    (halfway / "link.html").symlink_to(tmp_path / "secret.txt")
    (halfway / "report.html").unlink(missing_ok=True)
    (halfway / "report.html").symlink_to(tmp_path / "secret.txt")
    assert ask(live, "/")[0] == 200
    status, body = ask(live, "/report.html?again")
    assert status == 200 and SECRET not in body  # made in memory: the link is not followed
    for path in (
        "/config.json",
        "/link.html",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "//secret.txt",
        f"{tmp_path}/secret.txt",
        f"file://{tmp_path}/secret.txt",
        "/report.html/../../secret.txt",
        "/report.html%00.txt",
        "/round-01/",
        "*",
    ):
        status, body = ask(live, path)
        assert status == 404 and SECRET not in body, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert ask(live, "/", method)[0] == 501, method
    assert ask(live, "/", "HEAD") == (200, "")


def test_names_of_other_sites_are_refused(live: LiveServer) -> None:
    port = live._server.server_address[1]
    assert ask(live, "/", host=f"localhost:{port}")[0] == ask(live, "/", host="127.0.0.1:8080")[0] == 200
    for host in (f"example.org:{port}", "example.org", "", f"127.0.0.1.example.org:{port}"):
        assert ask(live, "/", host=host)[0] == 403, host


def test_the_page_has_the_progress_of_the_run(live: LiveServer, halfway: Path) -> None:
    _, body = ask(live, "/")
    text, done = Page(body).text, read(halfway / "round-01" / "round.json")
    assert "resnet8 on folder:pictures: round 2 is at work" in text
    assert "round 2: retrain: 30 of 120" in text and "loss 0.5" in text
    assert "1 round so far" in text and f"{100 * done['after']['top1']:.2f}%" in text
    macs = read(halfway / "base.json")["macs"]
    assert f"{100 * (1 - done['macs'] / macs):.1f}%" in text and len(charts(body, "rounds")) == 1
    assert "Retraining in round 2" in text and "0.2500" in text and "0.5000" in text
    assert '<meta http-equiv="refresh" content="3">' in body
    assert "If it stops prunus prune --resume" in text


def test_a_run_that_says_nothing_more(halfway: Path) -> None:
    run = read_unfinished(halfway)
    assert run.doing is not None
    later = Page(render_progress(run, float(run.doing["time"]) + 300)).text
    assert "Last sign of life 5 min 0 s ago. The run may have been interrupted." in later
    (halfway / "progress.json").unlink()
    assert "It may have been interrupted" in Page(page_of(halfway)[0]).text


def test_before_it_starts_and_while_a_file_is_damaged(halfway: Path, tmp_path: Path) -> None:
    page, finished = page_of(tmp_path / "nothing")
    assert "holds no run yet" in page and not finished
    (halfway / "base.json").write_text("{")
    page, finished = page_of(halfway)
    assert "cannot be read" in page and "base.json" in page and "refresh" in page and not finished


def test_a_finished_run_is_its_report_and_ends_the_watch(
    live: LiveServer, halfway: Path, compressed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_server, "FAREWELL", 30.0)
    start = time.monotonic()
    live.farewell()  # nobody has looked
    assert time.monotonic() - start < 1
    ask(live, "/")
    shutil.rmtree(halfway)
    shutil.copytree(compressed.folder, halfway)
    _, body = ask(live, "/")
    assert "What was removed:" in Page(body).text and 'http-equiv="refresh"' not in body
    start = time.monotonic()
    live.farewell()  # the browser has the report
    assert time.monotonic() - start < 1


def test_a_port_can_be_asked_for_and_is_free_again(halfway: Path) -> None:
    first = LiveServer(halfway)
    port = first._server.server_address[1]
    with pytest.raises(RunError, match=f"port {port} cannot be used"):
        LiveServer(halfway, port)
    first.start()
    first.stop()
    again = LiveServer(halfway, port)
    again.start()
    assert ask(again, "/")[0] == 200
    again.stop()
