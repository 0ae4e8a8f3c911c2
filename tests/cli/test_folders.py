"""A verb leaves a folder alone that belongs to something else, and says what the folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import Result

from prunus.errors import RunError
from prunus.run.folder import RunFolder
from prunus.studies.folder import StudyFolder
from tests.cli.command_line import lines, prunus
from tests.run.toys import contents, run

SHORT = ["lenet5", "--data", "digits", "--epochs", "1", "--num-images", "64", "--no-augment", "--device", "cpu"]


@pytest.fixture(scope="module")
def pruning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pruning") / "run"
    run(folder, epochs=0, rounds=1, target=0.3)
    return folder


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 1 and result.stderr.strip().startswith("error:"), result.output
    assert all(word in result.stderr for word in words), result.stderr


def test_no_verb_writes_into_a_pruning_run(pruning: Path) -> None:
    before = contents(pruning)
    quick = ["lenet5", "--data", "digits"]
    refused(prunus("train", *SHORT, "--out", pruning), str(pruning), "holds a pruning run")
    refused(prunus("inspect", *quick, "--scores", "l1", "--out", pruning), "holds a pruning run")
    refused(prunus("inspect", *quick, "--sensitivity", "--out", pruning), "holds a pruning run")
    refused(prunus("inspect", *quick, "--sensitivity", "--out", pruning / "round-01"), "holds a round of a pruning run")
    refused(prunus("show", "channels", *quick, "--layer", "conv1:out", "--out", pruning), "holds a pruning run")
    refused(prunus("export", "lenet5", pruning / "model.safetensors"), "belongs to a pruning run")
    refused(prunus("report", pruning, "--out", pruning / "plan.json"), "belongs to a pruning run")
    with pytest.raises(RunError, match="holds a pruning run, not a study"):
        StudyFolder(pruning, "timing", {}).start()
    assert contents(pruning) == before


def test_nothing_is_pruned_into_another_folder(tmp_path: Path) -> None:
    lines(prunus("train", *SHORT, "--out", tmp_path / "trained"))
    before = contents(tmp_path / "trained")
    weights = tmp_path / "trained" / "model.safetensors"
    again = ["prune", "lenet5", "--weights", weights, "--data", "digits", "--out", tmp_path / "trained"]
    refused(prunus(*again), "holds a training run")
    assert contents(tmp_path / "trained") == before
    StudyFolder(tmp_path / "study", "timing", {}).start()
    with pytest.raises(RunError, match="holds a study, not a pruning run"):
        RunFolder(tmp_path / "study").begin({"settings": {}})
    refused(prunus("train", *SHORT, "--out", tmp_path / "study"), "holds a study")


def test_files_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("mine")
    refused(prunus("train", *SHORT, "--out", tmp_path), "holds model.safetensors, which is not that of a training run")
    assert (tmp_path / "model.safetensors").read_text() == "mine"
    refused(prunus("train", *SHORT, "--out", tmp_path / "model.safetensors"), "is a file")
