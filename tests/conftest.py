"""Markers by folder, and what is left out where the browser is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# `make test-cpus` runs the tests of all other rooms under older instruction sets as well: they compute with networks.
NOT_COMPUTING = {"base", "zoo", "report", "examples"}
# In continuous integration the browser must be there: without it the tests fail, and are not left out.
LEFT_OUT = shutil.which("chromium") is None and not os.environ.get("CI")
collect_ignore = ["report/test_browser.py"] if LEFT_OUT else []


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Timings go to a folder of the tests, and are not read from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `numeric` the tests of all rooms that compute, except those of wall-clock time.

    Tests of wall-clock time get two more tries: other work on the machine can disturb a single measurement.
    """
    for item in items:
        room, *inside = item.path.relative_to(TESTS).parts
        if item.get_closest_marker("timing") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))
        elif inside and room not in NOT_COMPUTING:
            item.add_marker(pytest.mark.numeric)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEFT_OUT:
        terminalreporter.write_line("left out: tests/report/test_browser.py (needs chromium: apt-get install chromium)")
