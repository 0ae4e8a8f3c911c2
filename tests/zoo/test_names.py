"""What can be named without torch: data sets, networks, held-out images."""

from __future__ import annotations

import subprocess
import sys

from prunus.zoo import models
from prunus.zoo.models import totals
from prunus.zoo.names import DATA_SETS, Holdout, is_user_data, known_models, num_classes, parse_holdout


def test_class_names_are_the_official_ones_in_alphabetical_order() -> None:
    fine = DATA_SETS["cifar100"].classes
    assert len(fine) == len(set(fine)) == 100
    assert list(fine) == sorted(fine)
    assert (fine[0], fine[49], fine[99]) == ("apple", "mountain", "worm")
    for name, known in DATA_SETS.items():
        assert name == known.name and known.about
        assert len(known.mean) == len(known.std) == known.shape[0]
        assert known.package is None or ("@" in known.package and known.content)


def test_what_is_typed() -> None:
    assert (num_classes("cifar10"), num_classes("imagenet:x"), num_classes("folder:x"), num_classes("a:b")) == (
        10,
        1000,
        None,
        None,
    )
    assert is_user_data("my.module:make") and not is_user_data("folder:make") and not is_user_data("digits")
    assert parse_holdout("train:0.1") == Holdout("train", 0.1) and parse_holdout("none") == Holdout("none")


def test_the_stored_table_of_networks_is_right() -> None:
    table = known_models()
    assert tuple(table) == models.names()
    assert table == {name: totals(name) for name in table}


def test_listing_and_refusals_need_no_torch() -> None:
    code = """
import sys
from typer.testing import CliRunner
from prunus.cli import build
for words, status, said in (
    ("inspect", 0, "resnet56"),
    ("prune --target 2", 1, "target must be"),
    ("prune resnet8 --metric gsdd", 1, "gsd"),
    ("prune resnet8 --preset nothing", 1, "nothing"),
    ("prune resnet8 --batch-size 0", 1, "batch_size must be at least 1"),
):
    done = CliRunner().invoke(build(), words.split())
    assert done.exit_code == status and said in done.output, (words, done.output)
assert "torch" not in sys.modules, "torch was imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
