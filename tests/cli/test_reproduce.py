"""`secateur reproduce`: lists recipes, prints what changes, refuses what cannot run, and runs one from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

import secateur as sc
from secateur.studies.recipes.recipe import load_recipe, recipe_names
from secateur.zoo.models import create
from tests.cli.command_line import lines, secateur

NAMES = recipe_names()


def test_the_list() -> None:
    said = lines(secateur("reproduce", columns=200))
    assert [line.split()[0] for line in said[1 : 1 + len(NAMES)]] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_dry_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = lines(secateur("reproduce", name, "--dry-run", columns=400))
    assert said[0].startswith(load_recipe(name).title) and "no setting is changed (budget full)" in said
    assert said[-1].startswith("  secateur ") and not list(tmp_path.iterdir())


def test_a_dry_run_prints_what_changes_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["resnet56-cifar10-b", "--budget", "cpu", "--weights", "w.pt", "--set", "holdout=test:0.5", "--dry-run"]
    said = lines(secateur("reproduce", *words, columns=400))
    assert said[0] == "ResNet-56 on CIFAR-10, G-SD-B (Table 1a)"
    assert "as published: top-1 93.4 -> 93.84%, 63.0% of MACs and 52.4% of weights removed" in said
    assert "  run: epochs 200 -> 2" in said and "  run: holdout train:0.1 -> test:0.5" in said
    assert not any(line.startswith("  train:") for line in said)  # no network is trained
    printed = said[said.index("commands:") + 1 :]
    assert printed[0].startswith("  secateur prune resnet56 --data cifar10 --metric gsd --target 0.63 --k 18")
    assert printed[-1] == "  secateur study table runs/resnet56-cifar10-b-cpu/resnet56-cifar10-b"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["nothing"], "there is no recipe called 'nothing'. Available: fig1"),
        (["vgg16-imagenet-a"], "needs a folder of images: pass --data imagenet:FOLDER"),
        (["vgg16-imagenet-a", "--data", "imagenet:x"], "needs a trained network: pass --weights FILE"),
        (["vgg16-imagenet-a", "--set", "train.epochs=3"], "trains no network at this budget"),
        (["vgg16-imagenet-a", "--set", "epochs"], "--set takes KEY=VALUE"),
        (["vgg16-cifar10", "--budget", "tiny"], "one of smoke, cpu, full; got 'tiny'"),
    ],
)
def test_what_cannot_run(words: list[str], complaint: str) -> None:
    result = secateur("reproduce", *words, columns=400)
    assert result.exit_code == 1 and complaint in result.stderr


def test_a_setting_that_the_command_does_not_have() -> None:
    result = secateur("reproduce", "resnet56-cifar10-a", "--budget", "smoke", "--set", "nonsense=1", columns=400)
    assert result.exit_code == 2 and "No such option" in result.output + result.stderr


def test_one_recipe_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, prunes, and prints the row; the same command again has nothing left to do."""
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "vgg16-cifar10", "--budget", "smoke", "--device", "cpu"]
    said = lines(secateur(*words, columns=400))
    folder = Path("runs/vgg16-cifar10-smoke")
    found = sc.studies.table([folder / "vgg16-cifar10"])
    (row,) = found.rows
    assert 29.0 < row["macs_removed"] < 60  # three tenths were asked for, and a LeNet's channels are few
    assert "  run: model vgg16 -> lenet5" in said and "  run: target 0.801 -> 0.3" in said
    assert any("The paper has no rows for lenet5 on digits." in line for line in said)
    assert sc.load(folder / "vgg16-cifar10", create("lenet5"))
    again = lines(secateur(*words, columns=400))
    assert again[-4:] == said[-4:]
