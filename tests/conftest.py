"""Markers by folder, and what is left out where the browser is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

import prunus

TESTS = Path(__file__).parent
# `make test-cpus` runs the tests of all other rooms under older instruction sets as well: they compute with networks.
NOT_COMPUTING = {"util", "zoo", "report", "examples"}
# In continuous integration the browser must be there: without it the tests fail, and are not left out.
LEFT_OUT = shutil.which("chromium") is None and not os.environ.get("CI")
BROWSING = ["report/test_browser.py", "test_site_browser.py"]
collect_ignore = BROWSING if LEFT_OUT else []


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Timings go to a folder of the tests, and are not read from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _short_final_timing() -> Iterator[None]:
    """Runs are timed in each engine at their end, here for a moment only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prunus.run.final_timing.ROW_SECONDS", 0.05)
        yield


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built once for all processes of a test run, as `make docs` builds it."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    base = tmp_path_factory.getbasetemp() if alone else tmp_path_factory.getbasetemp().parent
    folder = base / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(Path(prunus.__file__).parents[1])}
    with FileLock(base / "site.lock"):
        if not (base / "site.built").exists():
            done = subprocess.run(
                command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stdout + done.stderr  # a warning is an error: a broken link, for example
            (base / "site.built").touch()
    return folder


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
        names = ", ".join(f"tests/{name}" for name in BROWSING)
        terminalreporter.write_line(f"left out: {names} (they need chromium: apt-get install chromium)")
