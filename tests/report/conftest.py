"""One real run for all tests of the report; tests that change it take a copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from prunus.run.folder import RunFolder
from tests.report.runs import COMMAND, COMMAND_LINE, make_run


@pytest.fixture(scope="session")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `compress` gave; its folder is the run."""
    return make_run(
        RunFolder(tmp_path_factory.mktemp("run") / "small", about={"command": COMMAND, "command_line": COMMAND_LINE})
    )


@pytest.fixture
def run(compressed: Any, tmp_path: Path) -> Path:
    """A copy of the run's folder."""
    return Path(shutil.copytree(compressed.folder, tmp_path / "small run"))
