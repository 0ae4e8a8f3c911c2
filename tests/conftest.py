"""Tests that need a browser are left out, and that is said, where Debian's chromium is not installed."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = shutil.which("chromium")
collect_ignore = [] if CHROMIUM else ["report/test_browser.py"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if CHROMIUM is None:
        terminalreporter.write_line("left out: tests/report/test_browser.py (needs chromium: apt-get install chromium)")
