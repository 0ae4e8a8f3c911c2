"""Serves the page of one run to the browser of this machine: progress while the run is at work, then its report.

It listens on 127.0.0.1 only. Pages are made in memory from the files of the run; no path of a request is ever opened.
"""

from __future__ import annotations

import itertools
import shlex
import threading
import time
from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prunus.errors import PrunusError, RunError
from prunus.report import svg
from prunus.report.charts import Axes
from prunus.report.html import REPORT, document, paragraph, section, sorting_row, sorting_table
from prunus.report.read import UnfinishedRun, read_run, read_unfinished
from prunus.report.run_page import render
from prunus.report.text import big, count, duration, percent
from prunus.run.folder import CONFIG, SUMMARY

# The page of a run that has not finished: what it does now, its rounds and epochs so far. The browser reloads it.

EVERY = 3  # seconds between two loads
SILENT = 60.0  # seconds without a sign of life


def starting_page(words: str) -> str:
    """A page that says why there is nothing to show yet."""
    return document("Waiting for the run", paragraph(words), refresh=EVERY)


def render_progress(run: UnfinishedRun, now: float) -> str:
    """The page as HTML. now: seconds since 1970, to tell how old the last sign of life is."""
    command = run.command
    name = f"{command['model']} on {command.get('data')}" if command.get("model") else "A run"
    title = f"{name}: round {len(run.rounds) + 1} is at work"
    parts = [_doing(run.doing, now), _asked(run), _rounds(run), _epochs(run)]
    return document(title, "\n".join(part for part in parts if part), refresh=EVERY)


def _doing(found: Mapping[str, Any] | None, now: float) -> str:
    again = f"This page loads itself again every {EVERY} seconds."
    if found is None:
        words = "The run has not said what it is doing. It may have been interrupted."
        return f'<p class="verdict">{escape(words)}</p>' + paragraph(again, "soft")
    done, total = int(found["done"]), int(found["total"])
    words = f"{found['phase']}: {done:,} of {total:,}"
    silent = max(0.0, now - float(found["time"]))
    share = 100 * done / total if total else 0
    bar = (
        f'<div class="progress" role="img" aria-label="{share:.0f}% done"><div style="width:{share:.0f}%"></div></div>'
    )
    ago = f"Last sign of life {duration(silent)} ago." if silent >= 1 else ""
    if silent > SILENT:
        ago += " The run may have been interrupted."
    note = " ".join(each for each in (f"{found['note']}." if found.get("note") else "", ago, again) if each)
    return f'<p class="verdict">{escape(words)}</p>{bar}' + paragraph(note, "soft")


def _asked(run: UnfinishedRun) -> str:
    line = run.config.get("command_line")
    rows = {"Command": str(line)} if line else {}
    if run.base is not None:
        rows[f"Held-out {run.quality.name} before"] = run.quality.shown(run.base.quality)
    rows["If it stops"] = shlex.join(["prunus", "prune", "--resume", str(run.folder)])
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows.items())
    return f"<dl>{listed}</dl>"


def _rounds(run: UnfinishedRun) -> str:
    if not run.rounds:
        return section("Rounds", paragraph("No round is finished yet."))
    rows = []
    for place, done in enumerate(run.rounds):
        gone = 1 - done.macs / run.macs if run.macs else 0.0
        cells = [
            (f"{done.number}", float(done.number), ""),
            (f"{sum(done.chosen.values()):,}", float(sum(done.chosen.values())), ""),
            (big(done.macs), float(done.macs), ""),
            (percent(gone) if run.macs else "–", gone, ""),
            (run.quality.shown(done.after.quality), done.after.quality, ""),
            (duration(sum(done.seconds.values())), sum(done.seconds.values()), ""),
        ]
        rows.append(sorting_row(place, cells))
    headings = ("round", "channels removed", "MACs", "MACs removed", f"held-out {run.quality.name}", "time")
    table = sorting_table(headings, rows, "Rounds so far")
    return section(f"{count(len(run.rounds), 'round')} so far", _chart(run), table)


def _chart(run: UnfinishedRun) -> str:
    """Held-out quality against MACs removed."""
    if run.base is None or not run.macs:
        return ""
    factor, words = run.quality.factor, run.quality
    course = [(0.0, factor * run.base.quality)]
    course += [(100 * (1 - done.macs / run.macs), factor * done.after.quality) for done in run.rounds]
    axes = Axes.around([value for _, value in course], [gone for gone, _ in course], 230, words)
    body = axes.grid()
    for start, end in itertools.pairwise(course):
        body.append(svg.line(*axes.at(*start), *axes.at(*end), "curve"))
    for gone, value in course:
        title = f"{words.scaled(value)} with {gone:.1f}% of the MACs removed"
        body.append(svg.dot(*axes.at(gone, value), "kept", title))
    label = f"Held-out {words.name} after {count(len(run.rounds), 'round')}, now {words.scaled(course[-1][1])}."
    return f"<figure>{svg.chart(body, axes.height, label, 'rounds')}</figure>"


def _epochs(run: UnfinishedRun) -> str:
    """The epochs of the round at work."""
    if not run.epochs:
        return ""
    rows = []
    for place, epoch in enumerate(run.epochs):
        held = epoch.holdout
        cells = [
            (f"{epoch.number}", float(epoch.number), ""),
            (f"{epoch.lr:.4g}", epoch.lr, ""),
            (f"{epoch.loss:.4f}", epoch.loss, ""),
            ("–", 0.0, "") if held is None else (run.quality.shown(held.quality), held.quality, ""),
        ]
        rows.append(sorting_row(place, cells))
    headings = ("epoch", "learning rate", "training loss", f"held-out {run.quality.name}")
    table = sorting_table(headings, rows, "Epochs so far")
    return section(f"Retraining in round {len(run.rounds) + 1}", table)


HOME = "127.0.0.1"
NAMES = (HOME, "localhost")  # by which a browser of this machine may call the server
PATHS = ("/", f"/{REPORT}")
LATELY = 10.0  # seconds since the last request of a browser that is still looking
FAREWELL = 6.0  # seconds that such a browser gets to load the report


def page_of(folder: Path) -> tuple[str, bool]:
    """The page of a run as it is now, and whether the run has finished."""
    try:
        if (folder / SUMMARY).exists():
            return render(read_run(folder)), True
        if (folder / CONFIG).exists():
            return render_progress(read_unfinished(folder), time.time()), False
        return starting_page(f"{folder} holds no run yet."), False
    except (PrunusError, OSError) as error:  # perhaps a file that is being written: the next load may find it
        return starting_page(f"The files of the run cannot be read: {error}"), False


class LiveServer:
    """A server in threads of its own. port: 0 takes a free one."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.asked_at = 0.0  # when a browser asked last
        self.gave_report = False
        try:
            self._server = ThreadingHTTPServer((HOME, port), _handler(self))
        except (OSError, OverflowError) as error:
            raise RunError(f"port {port} cannot be used ({error}): leave --port out to take a free one") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOME}:{self._server.server_address[1]}/"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def farewell(self) -> None:
        """After the run: wait until a browser that is still looking has the report."""
        end = time.monotonic() + FAREWELL
        while time.monotonic() - self.asked_at < LATELY and not self.gave_report and time.monotonic() < end:
            time.sleep(0.05)


def _handler(live: LiveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """GET and HEAD of the page; anything else is refused."""

        server_version, sys_version = "prunus", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            # Another site could give its name the address of this machine; it would call the server by its own name.
            if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
                self.send_error(HTTPStatus.FORBIDDEN, "this page is for the browser of this machine")
                return
            if self.path.partition("?")[0] not in PATHS:
                self.send_error(HTTPStatus.NOT_FOUND, "only the report is served")
                return
            page, finished = page_of(live.folder)
            body = page.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if with_body:
                self.wfile.write(body)
                live.asked_at, live.gave_report = time.monotonic(), live.gave_report or finished

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the terminal belongs to the run."""

    return Handler
