"""A LeNet-5 that was trained on the digits and pruned, by the commands that a user would type."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command_line import lines, prunus

TRAIN = ["lenet5", "--data", "digits", "--epochs", "3", "--lr", "0.05", "--batch-size", "32"]
PRUNE = [
    "--data",
    "digits",
    "--num-images",
    "100",
    "--metric",
    "gsd",
    "--target",
    "0.4",
    "--epochs",
    "0",
    "--repair",
    "none",
]


def trained_lenet(folder: Path) -> Path:
    """The weight file, after two seconds."""
    lines(prunus("train", *TRAIN, "--no-augment", "--device", "cpu", "--out", folder))
    return folder / "model.safetensors"


def pruned_lenet(folder: Path) -> Path:
    """The folder of a finished run."""
    weights = trained_lenet(folder / "base")
    lines(prunus("prune", "lenet5", "--weights", weights, *PRUNE, "--device", "cpu", "--out", folder / "run"))
    return folder / "run"
