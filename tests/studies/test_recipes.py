"""Recipes: each maps to commands that parse at every budget, with the paper's numbers at the full one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import prunus as pr
from prunus.cli.options import settings_from
from prunus.cli.reproduce import check
from prunus.deciding.widths import candidates
from prunus.errors import RunError
from prunus.run.settings import Settings, check_settings
from prunus.studies.recipes import (
    BUDGETS,
    Change,
    PublishedGroup,
    PublishedRow,
    all_commands,
    at_budget,
    commands,
    group_of,
    load_recipe,
    missing,
    published,
    recipe_names,
    recipe_of,
    recipes_called,
)
from prunus.train.settings import DEFAULT_PRESET, PRESETS, preset_of
from prunus.util.options import parse_value
from prunus.zoo.models import create, totals

NAMES = recipe_names()
PRUNING = [name for name in NAMES if load_recipe(name).command == "prune"]


def options(words: list[str]) -> dict[str, Any]:
    """The options of a command by name, those of --set too."""
    parsed = check(words)
    changes = (text.partition("=") for text in parsed.get("changes") or ())
    return parsed | {name: parse_value(value) for name, _, value in changes}


def settings(words: list[str]) -> Settings:
    """What `prunus prune` would make of a command."""
    return settings_from(Settings, options(words))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_gives_commands_that_parse(name: str, budget: str) -> None:
    recipe, changes = at_budget(load_recipe(name), budget)
    told = commands(recipe, Path("runs"), device="cpu" if "data" in recipe.run else None)
    for words in told:
        check(words)
        if words[0] == "prune":
            check_settings(settings(words))
        if words[0] == "train":
            asked = check(words)
            preset_of(asked["preset"] or DEFAULT_PRESET, epochs=asked["epochs"], lr=asked["lr"])
    assert bool(changes) == (budget == "smoke" or (budget == "cpu" and recipe.command != "study structure"))
    if budget == "smoke":  # it needs nothing that is not in scikit-learn's wheel
        assert missing(told) is None and recipe.run.get("data", "digits") == "digits"
    elif any("imagenet:PATH" in words for words in told):
        assert "--data imagenet:FOLDER" in str(missing(told))


# Units that take part: a third of them, rounded, is k. Residual blocks have an input and an inner unit (basic), or an
# input and two inner ones (bottleneck). The first block reads the stem, and VGG-16's conv5_3 is read by fc_1.
UNITS = {"resnet56": 54, "resnet110": 108, "vgg16": 13, "vgg19": 16, "vgg16_imagenet": 13 - 1, "resnet50": 48 - 1}
UNITS |= {"preresnet164": 3 * 54 - 1}


@pytest.mark.parametrize("name", PRUNING)
def test_the_papers_numbers(name: str) -> None:
    recipe = load_recipe(name)
    found = settings(commands(recipe, Path("runs"), weights=Path("w"))[0])
    group = group_of(recipe.run["model"], recipe.run["data"])
    assert group is not None
    row = next(row for row in group.rows if row.method == recipe.published)
    assert found.target == pytest.approx(row.macs_removed / 100)  # type: ignore[operator]
    assert (found.metric, found.alpha, found.split, found.rounds) == ("gsd", 3.0, "algorithm1", None)
    assert found.exact and found.repair == "none" and not found.distill
    assert found.k == round(UNITS[recipe.run["model"]] / 3)
    # 200 epochs of 128 images, 0.01 divided by 5 at 80 and 160; or 30 / 120 of 256, 0.0003 times 0.4.
    epochs = {"imagenet-vgg16": 30, "imagenet-resnet50": 120, "cifar": 200}[found.preset]
    preset = preset_of(found.preset, epochs=found.epochs, lr=found.lr)
    assert preset == PRESETS[found.preset] and preset.epochs == epochs
    assert recipe.run["batch_size"] == preset.batch_size == (128 if found.preset == "cifar" else 256)
    assert preset.lr == (0.01 if found.preset == "cifar" else 0.0003)
    assert found.num_images == (None if found.preset == "cifar" else 10000)  # CIFAR: all training data
    assert ("conv1:out" in found.exclude) == (recipe.run["model"] in ("resnet50", "preresnet164"))


@pytest.mark.parametrize(("name", "side"), [("resnet50-imagenet-b", 64), ("resnet164-cifar100", 32)])
def test_only_the_units_that_the_paper_prunes_take_part(name: str, side: int) -> None:
    recipe = load_recipe(name)
    graph = pr.trace(create(recipe.run["model"]).eval(), torch.zeros(1, 3, side, side), check=False)
    found = candidates(graph, recipe.run["exclude"])
    assert len(found) == UNITS[recipe.run["model"]]
    assert not [unit for unit in found if "shortcut" in unit or "downsample" in unit]


@pytest.mark.parametrize("name", PRUNING)
def test_exclusions_at_the_smoke_budget_match_its_small_network(name: str) -> None:
    run = at_budget(load_recipe(name), "smoke")[0].run
    channels = {} if run["model"] == "lenet5" else {"in_channels": 1}
    side = run.get("size", 32)
    graph = pr.trace(create(run["model"], **channels).eval(), torch.zeros(1, 1, side, side), check=False)
    assert candidates(graph, run.get("exclude", ()))  # an error for a pattern that matches nothing


def test_tables_and_figures_by_name() -> None:
    assert recipes_called("table1b") == ("resnet164-cifar100", "vgg19-cifar100")
    assert len(recipes_called("table1")) == 7 and len(recipes_called("table2")) == 4
    assert recipes_called("fig7") == recipes_called("fig3") == ("fig3-resnet50-imagenet",)
    assert recipes_called("table4") == ("structure-resnet50-imagenet-b",)
    with pytest.raises(RunError, match=r"there is no recipe called 'table9'.*did you mean table"):
        recipes_called("table9")


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("table", ["table1", "table2", "fig2", "fig4"])
def test_a_network_that_a_table_trains_once_is_trained_alike_for_all(table: str, budget: str) -> None:
    steps = all_commands([at_budget(load_recipe(name), budget)[0] for name in recipes_called(table)], Path("runs"))
    bases = [step[step.index("--out") + 1] for step in steps if step[0] == "train"]
    assert len(bases) == len(set(bases))  # two commands would train into one folder


def test_every_row_of_the_papers_own_has_a_recipe() -> None:
    own = {(g.models[0], g.data, row.method) for g in published().groups for row in g.rows if row.by == "the paper"}
    have = {(r.run["model"], r.run["data"].partition(":")[0], r.published) for r in map(load_recipe, PRUNING)}
    assert have == own and len(own) == 11


def test_figures() -> None:
    four = check(commands(load_recipe("fig4-resnet110-cifar10"), Path("runs"), weights=Path("w"))[0])
    assert four["ratios"] == "0.05,0.1,0.15,0.2,0.25,0.3,0.35,0.4" and four["epochs"] == 0
    two = check(commands(load_recipe("fig2-resnet38-cifar100"), Path("runs"), weights=Path("w"))[0])
    assert (two["ratios"], two["epochs"], two["preset"]) == ("0.1,0.2,0.3,0.4", 150, "effectiveness")
    assert set(two["metrics"].split(",")) == {"gsd", "di", "mmd", "ttest", "abs_snr", "fdr", "random"}
    five = options(commands(load_recipe("fig5-resnet56-cifar10"), Path("runs"), weights=Path("w"))[0])
    assert (five["start"], five["iterations"], five["metric"], five["epochs"]) == ("0.31", 5, "gsd", 200)
    assert five["exact"]  # Algorithm 1 as printed
    assert load_recipe("fig6-vgg16-imagenet").run["num_images"] == 3000


def test_changes_are_told() -> None:
    recipe = recipe_of(
        "mine",
        tomllib.loads("""
            title = "t"
            paper = "p"
            command = "prune"
            [train]
            epochs = 9
            [run]
            model = "resnet8"
            data = "digits"
            alpha = 3.0
            epochs = 5
            exclude = ["a", "b"]
            augment = true
            [budget.cpu.run]
            epochs = 1
            rounds = 2
            alpha = 3.0
        """),
    )
    smaller, changes = at_budget(recipe, "cpu")
    told = ["run: epochs 5 -> 1", "run: rounds the default -> 2"]
    solved = "run: alpha 3.0 -> solved so that the rounds reach the target"
    assert sorted(map(str, changes)) == sorted([*told, solved])
    assert recipe.run["epochs"] == 5 and at_budget(recipe, "full") == (recipe, [])
    typed = ["train.epochs=2", "train.augment=false"]
    smaller, more = at_budget(recipe, "cpu", typed)
    assert more == [*changes, Change("train", "epochs", 9, 2), Change("train", "augment", None, False)]
    assert at_budget(recipe, "cpu", typed, is_trained=True)[1] == changes
    last = at_budget(recipe, "cpu", ["epochs=5", "rounds=3"])[1]  # epochs are as they were in the beginning
    assert sorted(map(str, last)) == sorted(["run: rounds the default -> 3", solved])
    assert commands(smaller, Path("here")) == [
        ["train", "resnet8", "--epochs", "2", "--no-augment", "--out", "here/base"],
        [
            *("prune", "resnet8", "--data", "digits", "--set", "alpha=3.0", "--epochs", "1"),
            *("--exclude", "a", "--exclude", "b", "--augment", "--rounds", "2"),
            *("--weights", "here/base/model.safetensors", "--out", "here/mine"),
        ],
    ]
    with pytest.raises(RunError, match="one of smoke, cpu, full; got 'huge'"):
        at_budget(recipe, "huge")


GROUPS = published().groups


def rows(model: str, data: str) -> dict[str, PublishedRow]:
    group = group_of(model, data)
    assert group is not None
    return {row.method: row for row in group.rows}


def test_some_rows_as_the_paper_prints_them() -> None:
    ours = rows("resnet56", "cifar10")["G-SD-B"]
    assert ours == PublishedRow(
        "G-SD-B", "the paper", 93.40, 93.84, -0.44, None, None, None, 46_000_000, 63.0, 407_000, 52.4
    )
    thinet = rows("resnet50", "imagenet:some/folder")["ThiNet"]
    assert thinet == PublishedRow(
        "ThiNet", "Luo et al. 2017", 72.88, 72.04, 0.84, 91.14, 90.67, 0.47, 2_440_000_000, 40.3, 16_940_000, 33.6
    )
    fpgm = rows("resnet110", "cifar10")["FPGM"]
    assert (fpgm.top1, fpgm.macs, fpgm.params, fpgm.params_removed) == (93.74, 121_000_000, None, None)
    cp = rows("vgg16_imagenet", "imagenet")["CP"]
    assert (cp.top1, cp.base_top5, cp.top5, cp.top5_drop, cp.macs_removed) == (None, 89.90, 89.90, 0.0, 50.0)
    di = rows("preresnet164", "cifar100")["DI"]
    assert (di.base_top1, di.top1, di.macs, di.params) == (76.63, 76.11, 105_000_000, 950_000)
    assert group_of("resnet56", "cifar100") is None and group_of("vgg16", "imagenet") is None


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.table}-{group.network}")
def test_drops_are_differences_and_shares_belong_to_the_network(group: PublishedGroup) -> None:
    """To the printed digits, but for the rows that the notes name: drops are differences of accuracies, and what is
    left and the share removed give the cost of prunus's own network of that name."""
    whole = totals(group.models[0], {"cifar10": 10, "cifar100": 100, "imagenet": 1000}[group.data])
    odd = {("VGG-16", "L1"), ("VGG-16", "SSS"), ("ResNet-56", "KSE")} if group.table == "1a" else set()
    for row in group.rows:
        for base, after, drop in ((row.base_top1, row.top1, row.top1_drop), (row.base_top5, row.top5, row.top5_drop)):
            assert (base is None) == (after is None) == (drop is None)
            if (
                base is not None
                and after is not None
                and (group.network, row.method, drop) != ("ResNet-50", "GAL", 1.97)
            ):
                assert drop == pytest.approx(base - after, abs=1e-9)
        assert (row.params is None) == (row.params_removed is None)
        if (group.network, row.method) in odd:
            continue
        assert row.macs is not None and row.macs_removed is not None
        assert row.macs / (1 - row.macs_removed / 100) == pytest.approx(whole.macs, rel=0.03)
        if row.params is not None and row.params_removed is not None:
            assert row.params / (1 - row.params_removed / 100) == pytest.approx(whole.weights, rel=0.03)
