"""`prunus prune --resume`: options next to it that differ from the run's are refused, by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command_line import lines, prunus
from tests.run.toys import contents


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    short = ["lenet5", "--data", "digits", "--epochs", "1", "--limit", "64", "--device", "cpu"]
    lines(prunus("train", *short, "--out", folder / "trained"))
    words = ["--weights", folder / "trained" / "model.safetensors", "--data", "digits", "--device", "cpu"]
    lines(prunus("prune", "lenet5", *words, "--epochs", "0", "--target", "0.3", "--out", folder / "run"))
    return folder / "run"


@pytest.mark.parametrize(
    "words, named",
    [
        (["--target", "0.7"], "--target 0.7 differs from the run"),
        (["--metric", "l1"], "--metric l1 differs"),
        (["--only", "conv1*"], "--only ['conv1*'] differs"),
        (["--no-augment"], "--augment False differs"),
        (["--data", "mnist"], "--data mnist differs"),
        (["--out", "elsewhere"], "--out elsewhere differs"),
        (["--preset", "nonsense"], "--preset nonsense differs"),
        (["--max-drop", "1"], "which was started without it: --resume"),
    ],
)
def test_other_options_are_refused(finished: Path, words: list[str], named: str) -> None:
    before = contents(finished)
    result = prunus("prune", "--resume", finished, *words)
    assert result.exit_code == 1 and named in result.stderr and "--resume continues a run" in result.stderr
    assert contents(finished) == before


def test_another_network_is_refused(finished: Path) -> None:
    result = prunus("prune", "resnet8", "--resume", finished)
    assert result.exit_code == 1 and "MODEL resnet8 differs" in result.stderr and "has lenet5" in result.stderr


def test_the_same_options_may_be_repeated(finished: Path) -> None:
    same = ["--target", "0.3", "--data", "digits", "--epochs", "0", "--out", finished]
    assert lines(prunus("prune", "lenet5", "--resume", finished, *same))
    assert lines(prunus("prune", "--resume", finished))


def test_a_run_of_an_earlier_version_continues_as_it_began(finished: Path, tmp_path: Path) -> None:
    """There "none" was the default of --repair, and so no part of the command line."""
    old = tmp_path / "old"
    weights = finished.parent / "trained" / "model.safetensors"
    words = ["--weights", weights, "--data", "digits", "--device", "cpu", "--target", "0.3", "--epochs", "0"]
    lines(prunus("prune", "lenet5", *words, "--repair", "none", "--out", old))
    config = json.loads((old / "config.json").read_text())
    assert " --repair none" in config["command_line"]
    config["command_line"] = config["command_line"].replace(" --repair none", "")
    (old / "config.json").write_text(json.dumps(config))
    shutil.rmtree(old / "round-01")
    (old / "summary.json").unlink()
    lines(prunus("prune", "--resume", old))
    assert json.loads((old / "summary.json").read_text())["settings"]["repair"] == "none"
