"""One real run for all tests of the report, and its page; tests that change it take a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prunus.report.run_page import write_report
from prunus.run.folder import RunFolder
from tests.report.runs import COMMAND, COMMAND_LINE, change_json, make_run


@pytest.fixture(scope="session")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `compress` gave; its folder is the run."""
    about = {"command": COMMAND, "command_line": COMMAND_LINE}
    return make_run(RunFolder(tmp_path_factory.mktemp("run") / "small", about=about))


@pytest.fixture(scope="session")
def page(compressed: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the run."""
    out = tmp_path_factory.mktemp("page") / "page.html"
    assert write_report(compressed.folder, out) == out
    return out.read_text(encoding="utf-8")


@pytest.fixture
def run(compressed: Any, tmp_path: Path) -> Path:
    """A copy of the run's folder."""
    return Path(shutil.copytree(compressed.folder, tmp_path / "small run"))


@pytest.fixture
def another(compressed: Any, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the run whose summary.json and config.json are changed by functions."""

    def make(name: str, **changes: Callable[[Any], object]) -> Path:
        folder = Path(shutil.copytree(compressed.folder, tmp_path / name))
        for file, change in changes.items():
            change_json(folder / f"{file}.json", change)
        return folder

    return make
