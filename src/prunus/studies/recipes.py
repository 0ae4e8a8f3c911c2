"""The paper's experiments as recipes: a command, its options, and how a budget changes them.

[NAME]
like = ["shared.table1"]      other tables, whose content comes first: tables are merged, lists of sentences are joined
title = "..."                 paper = "Table 1a, ..."          command = "prune"
open = ["what the paper leaves open, and what is used here"]; "{ridge}" is one of `prunus.run.paper.OPEN`
departs = ["what is different from the paper at every budget"]
layers = ["the same, if it is true of the network on any data set"]
published = "G-SD-B"          the row of the paper's table to compare with
[NAME.train]                  options of `prunus train`, to train the network unless weights are given
[NAME.run]                    options of the command
[NAME.budget.cpu.run]         options that a budget changes; [NAME.budget.cpu.train] likewise

Options are written as on the command line, with _ instead of -. They are in `studies/paper/recipes.toml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from prunus.errors import RunError
from prunus.run.paper import OPEN, contradiction
from prunus.run.settings import RARE
from prunus.util.options import as_typed, check_choice, parse_value
from prunus.util.registry import unknown
from prunus.util.typed_json import from_data

SHARED = "shared"  # tables that are no recipes
BUDGETS = ("smoke", "cpu", "full")  # full: the paper's own settings, unchanged
SENTENCES = ("open", "departs", "layers")
WEIGHTS, PATH = "WEIGHTS", "PATH"  # placeholders in printed commands for what the user must provide
TABLE = ("study", "table")
PRUNING = ("prune", "study sensitivity")  # commands with the settings of a run
UNTRAINED = ("study timing", "study structure")  # commands that need no trained network

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """One experiment of the paper."""

    name: str
    title: str
    paper: str  # where it is in the paper
    command: str  # without `prunus`: "prune", "study effectiveness"
    run: Options
    train: Options | None = None
    published: str | None = None  # name of the method in the paper's tables
    open: tuple[str, ...] = ()  # what the paper leaves open, as in the file
    departs: tuple[str, ...] = ()  # what is different from the paper at every budget, `layers` among it
    layers: tuple[str, ...] = ()  # what is different in the layers of the network, on any data set
    budgets: Mapping[str, Mapping[str, Options]] = field(default_factory=dict)  # budget -> step -> options

    @property
    def left_open(self) -> tuple[str, ...]:
        """What the paper leaves open, and what is used here."""
        return tuple(text.format_map(OPEN) for text in self.open)


@dataclass(frozen=True)
class Change:
    """A setting that differs from the recipe."""

    step: str  # "train" or "run"
    key: str
    was: Any  # None: not set
    now: Any

    def __str__(self) -> str:
        was = "the default" if self.was is None else self.was
        return f"{self.step}: {self.key} {was} -> {self.now}"


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("prunus.studies") / "paper" / "recipes.toml").read_text(encoding="utf-8"))


def recipe_names() -> tuple[str, ...]:
    return tuple(sorted(name for name in _tables() if name != SHARED))


def recipes_called(name: str) -> tuple[str, ...]:
    """The recipe of this name, or all recipes of a table or figure of the paper: `table1`, `table1a`, `fig4`."""
    names = recipe_names()
    if name in names:
        return (name,)
    places = {each: places_of(load_recipe(each)) for each in names}
    chosen = tuple(each for each in names if name in places[each])
    if not chosen:
        raise RunError(unknown("recipe", name, [*sorted({p for each in places.values() for p in each}), *names]))
    return chosen


def places_of(recipe: Recipe) -> tuple[str, ...]:
    """What the recipe's place in the paper can be called: `table1` and `table1a`; `fig3` and `fig7`."""
    kind = "table" if recipe.paper.startswith("Table") else "fig"
    numbers = re.findall(r"(\d+)([a-z]?)", recipe.paper)
    return tuple(dict.fromkeys(kind + n for number, letter in numbers for n in (number, number + letter)))


def recipe_for(model: str) -> Recipe | None:
    """The first recipe that prunes this network; None if the paper does not."""
    pruning = (recipe for recipe in map(load_recipe, recipe_names()) if recipe.command == "prune")
    return next((recipe for recipe in pruning if recipe.run["model"] == model), None)


def load_recipe(name: str) -> Recipe:
    """The recipe of this name."""
    return recipe_of(name, _read(name))


def _read(name: str) -> dict[str, Any]:
    """A table, on top of those that it is `like`."""
    tables = _tables()
    content = dict(tables[SHARED][name.partition(".")[2]] if name.startswith(f"{SHARED}.") else tables[name])
    below: dict[str, Any] = {}
    for other in content.pop("like", ()):
        below = _on_top(below, _read(other))
    return _on_top(below, content)


def _on_top(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, merged. `above` decides; only lists of sentences are kept from both."""
    merged = dict(below)
    for key, value in above.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _on_top(before, value)
        else:
            merged[key] = [*(before or ()), *value] if key in SENTENCES else value
    return merged


def recipe_of(name: str, content: Mapping[str, Any]) -> Recipe:
    """A recipe from the content of its table."""
    rest = dict(content)
    budgets = rest.pop("budget", {})
    notes = {key: tuple(rest.get(key, ())) for key in SENTENCES}
    notes["departs"] += notes["layers"]
    return Recipe(name, **{**rest, **notes}, budgets=budgets)


def at_budget(
    recipe: Recipe, budget: str, given: Sequence[str] = (), *, data: str | None = None, is_trained: bool = False
) -> tuple[Recipe, list[Change]]:
    """The recipe at a budget, with changes that a user typed, and everything that differs from the recipe.

    A run of the paper's method follows the rules of `prune --paper`: what contradicts the method is a RunError, unless
    the budget changes the same setting.

    Args:
        given: Each KEY=VALUE or run.KEY=VALUE for the experiment, train.KEY=VALUE for the training before it.
        data: Another data set for both.
        is_trained: There are weights, so that nothing is trained.
    """
    check_choice("the budget", budget, BUDGETS, RunError)
    budgeted = recipe.budgets.get(budget, {})
    trains = recipe.train is not None or "train" in budgeted
    groups = list(budgeted.items())  # step -> options, one after the other
    both = [] if data is None else [*([f"train.data={data}"] if trains else []), f"data={data}"]
    for text in [*both, *given]:
        key, equals, value = text.partition("=")
        step, _, name = key.rpartition(".")
        if not equals or not name or step not in ("", "train", "run"):
            raise RunError(f"--set takes KEY=VALUE, run.KEY=VALUE or train.KEY=VALUE; got {text!r}")
        if step == "train" and not trains:
            raise RunError(f"{recipe.name} trains no network at this budget, so {text!r} would have no effect")
        reason = contradiction(name, parse_value(value)) if recipe.command == "prune" and step != "train" else None
        if reason is not None and name not in budgeted.get("run", {}):
            raise RunError(f"{reason}: leave out --set {text}, or use `prunus prune` without --paper")
        groups.append((step or "run", {name: parse_value(value)}))
    before: dict[str, Options] = {"train": recipe.train or {}, "run": recipe.run}
    after = {step: dict(options) for step, options in before.items()}
    last: dict[tuple[str, str], Any] = {}  # step and key -> the value that counts
    for step, options in groups:
        last |= {(step, key): value for key, value in options.items()}
        if "rounds" in options and "alpha" in after[step]:  # `prunus prune` solves alpha for a number of rounds
            last[step, "alpha"] = "solved so that the rounds reach the target"
        after[step] |= options
    changes = [Change(step, key, before[step].get(key), now) for (step, key), now in last.items()]
    changes = [each for each in changes if each.was != each.now and (each.step == "run" or not is_trained)]
    return replace(recipe, run=after["run"], train=after["train"] if trains else None), changes


def all_commands(
    recipes: Sequence[Recipe], folder: Path, *, device: str | None = None, root: Path | None = None
) -> list[list[str]]:
    """The commands of several recipes: equal networks are trained once, and one table at the end has all runs."""
    steps: dict[tuple[str, ...], None] = {}
    for recipe in recipes:
        trained = {**recipe.run, **(recipe.train or {})}
        base = folder / f"base-{trained['model']}-{str(trained.get('data')).partition(':')[0]}"
        steps |= dict.fromkeys(map(tuple, commands(recipe, folder, base=base, device=device, root=root)))
    tables = [step for step in steps if step[:2] == TABLE]
    last = [[*TABLE, *(step[2] for step in tables), "--out", str(folder / "table")]] if tables else []
    return [*(list(step) for step in steps if step not in tables), *last]


def commands(
    recipe: Recipe,
    folder: Path,
    *,
    weights: Path | None = None,
    base: Path | None = None,
    device: str | None = None,
    root: Path | None = None,
) -> list[list[str]]:
    """The commands to run, without `prunus`, in order. Results are written below `folder`.

    weights: those of a trained network; without it, one is trained in `base` (a folder).
    """
    where = {key: str(value) for key, value in (("device", device), ("data_root", root)) if value is not None}
    steps: list[list[str]] = []
    trained = str(weights) if weights else None
    if trained is None and recipe.train is not None:
        base = base or folder / "base"
        train = {**recipe.train, **where, "out": str(base)}
        steps.append(["train", str(train.pop("model", recipe.run["model"])), *_arguments(train, "train")])
        trained = str(base / "model.safetensors")
    if trained is None and recipe.command not in UNTRAINED:
        trained = WEIGHTS
    options = dict(recipe.run)
    model, result = str(options.pop("model")), folder / recipe.name  # the name of the run in a table
    if trained is not None and "data" in options:
        options["weights"] = trained
    if "data" in options:
        options |= where
    steps.append([*recipe.command.split(), model, *_arguments({**options, "out": str(result)}, recipe.command)])
    if recipe.published is not None:
        steps.append([*TABLE, str(result)])
    return steps


def missing(steps: list[list[str]]) -> str | None:
    """What the user must provide before the commands can run, in words; None if nothing."""
    arguments = [argument for step in steps for argument in step]
    if any(argument.endswith(f":{PATH}") for argument in arguments):
        return "a folder of images: pass --data imagenet:FOLDER"
    if WEIGHTS in arguments:
        return "a trained network: pass --weights FILE (torchvision's weights fit the ImageNet networks)"
    return None


def _arguments(options: Options, command: str) -> list[str]:
    """{"batch_size": 128, "augment": False} -> --batch-size 128 --no-augment"""
    by_set = RARE if command in PRUNING else ()
    return [word for key, value in options.items() for word in as_typed(key, value, by_set)]


# The rows of the paper's Tables 1 and 2, as published. Prunus did not measure these figures.

FILE = "published.json"
STATUS = "as published"


@dataclass(frozen=True)
class PublishedRow:
    """A pruned network in a table: accuracies in percent, MACs and weights. None if a figure was not reported."""

    method: str
    by: str  # the authors of the method
    base_top1: float | None
    top1: float | None
    top1_drop: float | None  # as printed; below 0 where the pruned network is better
    base_top5: float | None
    top5: float | None
    top5_drop: float | None
    macs: int | None
    macs_removed: float | None
    params: int | None
    params_removed: float | None


@dataclass(frozen=True)
class PublishedGroup:
    """The rows of one network and data set."""

    table: str  # 1a, 1b or 2
    network: str  # as written in the paper
    data: str
    models: tuple[str, ...]  # prunus's names of the network
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True)
class Published:
    """Everything in the file."""

    status: str
    source: str
    units: str
    notes: tuple[str, ...]
    groups: tuple[PublishedGroup, ...]


@cache
def published() -> Published:
    """The published rows, read once."""
    return from_data(Published, json.loads((files("prunus.studies") / "paper" / FILE).read_text(encoding="utf-8")))


def published_row(recipe: Recipe) -> PublishedRow | None:
    """The row of the paper that the recipe repeats, with the paper's network, which a budget may replace."""
    asked = load_recipe(recipe.name).run
    group = group_of(asked["model"], str(asked.get("data")))
    return None if group is None else next((row for row in group.rows if row.method == recipe.published), None)


def group_of(model: str, data: str) -> PublishedGroup | None:
    """The rows of a network and a data set, named as on the command line; None if the paper has none."""
    name = data.partition(":")[0]
    return next((group for group in published().groups if model in group.models and group.data == name), None)
