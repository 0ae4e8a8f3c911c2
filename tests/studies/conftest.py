"""One pruned network for all tests of the studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import lines, prunus


@pytest.fixture(scope="session")
def lenet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, which tests only read; the trained network is in base/ beside it.

    A LeNet-5 is trained on the digits and pruned, by the commands that a user would type.
    """
    folder = tmp_path_factory.mktemp("lenet")
    train = "train lenet5 --data digits --epochs 3 --lr 0.05 --batch-size 32 --no-augment --device cpu --out"
    lines(prunus(*train.split(), folder / "base"))
    prune = (
        "prune lenet5 --data digits --num-images 100 --metric gsd --target 0.4 --epochs 0 --repair none --device cpu"
    )
    lines(prunus(*prune.split(), "--weights", folder / "base" / "model.safetensors", "--out", folder / "run"))
    return folder / "run"
