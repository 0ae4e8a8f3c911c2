"""Serves the page of one run to the browser of this machine: progress while the run is at work, then its report.

It listens on 127.0.0.1 only. Pages are made in memory from the files of the run; no path of a request is ever opened.
"""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from secateur.errors import RunError, SecateurError
from secateur.report.finished_run import read_run
from secateur.report.html_document import REPORT
from secateur.report.progress_page import render_progress, starting_page
from secateur.report.run_page import render
from secateur.report.unfinished_run import read_unfinished
from secateur.running.folder import CONFIG, SUMMARY

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
    except (SecateurError, OSError) as error:  # perhaps a file that is being written: the next load may find it
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

        server_version, sys_version = "secateur", ""

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
