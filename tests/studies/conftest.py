"""One pruned network for all tests of the studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.studies.pruned import pruned_lenet


@pytest.fixture(scope="session")
def lenet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, which tests only read; the trained network is in base/ beside it."""
    return pruned_lenet(tmp_path_factory.mktemp("lenet"))
