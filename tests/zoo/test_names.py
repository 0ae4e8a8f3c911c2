"""What can be named without torch: data sets, networks, held-out images."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prunus.errors import DataError
from prunus.zoo.names import DATA_SETS, Holdout, is_user_data, num_classes, parse_holdout


def test_data_sets() -> None:
    fine = DATA_SETS["cifar100"].classes
    assert len(set(fine)) == 100 and list(fine) == sorted(fine)  # the official names are in this order
    assert (fine[0], fine[49], fine[99]) == ("apple", "mountain", "worm")
    for name, known in DATA_SETS.items():
        assert name == known.name and len(known.mean) == len(known.std) == known.shape[0]
    assert [num_classes(name) for name in ("cifar10", "imagenet:x", "folder:x", "a:b")] == [10, 1000, None, None]
    assert is_user_data("my.module:make") and not is_user_data("folder:make") and not is_user_data("digits")


def test_holdouts() -> None:
    assert parse_holdout("train:0.1") == Holdout("train", 0.1) and parse_holdout("none") == Holdout("none")
    for text in ("train", "train:0", "train:1", "val:0.5", "test:1.5", "test:-0.5", "test:0.0", ""):
        with pytest.raises(DataError, match="holdout must be train:SHARE"):
            parse_holdout(text)


def test_listing_and_refusals_need_no_torch() -> None:
    code = """
import sys
from typer.testing import CliRunner
from prunus.cli import build
for words, status, said in (
    ("inspect", 0, "resnet56"),
    ("prune --target 2", 1, "target must be"),
    ("prune resnet8 --metric gsdd", 1, "gsd"),
    ("prune resnet8 --set preset=nothing", 1, "nothing"),
    ("prune resnet8 --batch-size 0", 1, "batch_size must be at least 1"),
):
    done = CliRunner().invoke(build(), words.split())
    assert done.exit_code == status and said in done.output, (words, done.output)
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
