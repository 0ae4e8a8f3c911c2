"""`prunus reproduce`: lists recipes, prints what changes, refuses what cannot run, and runs one from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

import prunus as pr
from prunus.studies.recipes import load_recipe, recipe_names
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus

NAMES = recipe_names()


def test_all_recipes_are_listed_and_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    listed = lines(prunus("reproduce", columns=200))
    assert [line.split()[0] for line in listed[1 : 1 + len(NAMES)]] == list(NAMES)
    for name in NAMES:
        said = lines(prunus("reproduce", name, "--dry-run", columns=400))
        recipe = load_recipe(name)
        assert said[0].startswith(recipe.title)
        differs = [line for line in said if line.startswith("different from the paper: ")]
        assert differs == [f"different from the paper: {text}" for text in recipe.departs]
        assert "no setting is changed (budget full)" in said
        assert said[-1].startswith("  prunus ") and not list(tmp_path.iterdir())


def test_a_dry_run_prints_what_changes_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["resnet56-cifar10-b", "--budget", "cpu", "--weights", "w.pt", "--set", "holdout=test:0.5", "--dry-run"]
    said = lines(prunus("reproduce", *words, columns=400))
    assert said[0] == "ResNet-56 on CIFAR-10, G-SD-B (Table 1a)"
    assert "as published: top-1 93.4 -> 93.84%, 63.0% of MACs and 52.4% of weights removed" in said
    assert "  run: epochs 200 -> 2" in said and "  run: holdout train:0.1 -> test:0.5" in said
    assert not any(line.startswith("  train:") for line in said)  # no network is trained
    printed = said[said.index("commands:") + 1 :]
    assert printed[0].startswith("  prunus prune resnet56 ") and "--data cifar10 --target 0.63 --set k=18" in printed[0]
    assert printed[-1] == "  prunus study table runs/resnet56-cifar10-b-cpu/resnet56-cifar10-b"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["nothing"], "there is no recipe called 'nothing'. Available: fig1"),
        (
            ["table2", "--weights", "w.pt"],
            "table2 has several networks; give --weights to one recipe at a time: resnet",
        ),
        (["table2", "--data", "imagenet:x"], "needs a trained network: pass --weights FILE"),
        (["vgg16-imagenet-a"], "needs a folder of images: pass --data imagenet:FOLDER"),
        (["vgg16-imagenet-a", "--data", "imagenet:x"], "needs a trained network: pass --weights FILE"),
        (["vgg16-imagenet-a", "--set", "train.epochs=3"], "trains no network at this budget"),
        (["vgg16-imagenet-a", "--set", "epochs"], "--set takes KEY=VALUE"),
        (["resnet56-cifar10-a", "--budget", "smoke", "--set", "nonsense=1"], "No such option"),
        (["vgg16-cifar10", "--budget", "tiny"], "one of smoke, cpu, full; got 'tiny'"),
        (
            ["resnet56-cifar10-a", "--set", "repair=solve"],
            "the paper has no repair: leave out --set repair=solve, or use `prunus prune` without --paper",
        ),
        (
            ["resnet56-cifar10-a", "--set", "run.metric=l1"],
            "the paper has the metric gsd: leave out --set run.metric",
        ),
        (["resnet56-cifar10-a", "--set", "alpha=5.9"], "the paper has an alpha in [2, 4]: leave out --set alpha=5.9"),
        (
            ["resnet56-cifar10-a", "--budget", "cpu", "--set", "distill=true"],
            "the paper has no distillation: leave",
        ),
    ],
)
def test_what_cannot_run(words: list[str], complaint: str) -> None:
    result = prunus("reproduce", *words, columns=400)
    assert result.exit_code == (2 if complaint == "No such option" else 1) and complaint in result.stderr


def test_a_table_dry_runs_with_each_network_trained_once() -> None:
    said = lines(prunus("reproduce", "table1", "--budget", "smoke", "--dry-run", columns=600))
    printed = said[said.index("commands:") + 1 :]
    assert [line.split()[1] for line in printed].count("prune") == 7  # Tables 1a and 1b
    trained = [line.split()[2] for line in printed if line.split()[1] == "train"]
    assert sorted(trained) == ["lenet5", "preresnet20", "resnet8"]
    assert len([line for line in said if "The paper gives one number of fine-tuning epochs" in line]) == 1
    assert printed[-1].count("runs/table1-smoke/") == 8 and printed[-1].endswith("--out runs/table1-smoke/table")


def test_a_recipe_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, prunes, and prints the row; the same command again has nothing left to do."""
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "vgg19-cifar100", "--budget", "smoke", "--device", "cpu"]
    for change in ("rounds=1", "train.epochs=1", "num_images=100", "timing=false"):  # a test must be quick
        words += ["--set", change]
    said = lines(prunus(*words, columns=400))
    run = Path("runs/vgg19-cifar100-smoke/vgg19-cifar100")
    (row,) = pr.studies.table([run]).rows
    assert 29.0 < row["macs_removed"] < 60  # three tenths were asked for, and a LeNet's channels are few
    assert "  run: model vgg19 -> lenet5" in said and "  run: target 0.595 -> 0.3" in said
    assert "The paper has no rows for lenet5 on digits." in said
    assert pr.load(run, create("lenet5"))
    assert lines(prunus(*words, columns=400))[-4:] == said[-4:]
