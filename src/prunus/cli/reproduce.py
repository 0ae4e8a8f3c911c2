"""`prunus reproduce`: the paper's experiments by name, at a budget."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import EXIT_MISSED, Answer, console, friendly, say, table
from prunus.errors import RunError

if TYPE_CHECKING:
    from prunus.studies.recipes import Change, Recipe


@friendly
def command(
    name: Annotated[
        str | None, typer.Argument(help="A recipe, or a table or figure (table1); without it, all are listed")
    ] = None,
    budget: Annotated[str, typer.Option(help="smoke (seconds), cpu (hours) or full (as in the paper)")] = "full",
    weights: Annotated[Path | None, typer.Option(help="Weight file, instead of training a network first")] = None,
    data: Annotated[str | None, typer.Option(help="Folder of ILSVRC-2012, as imagenet:FOLDER")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Folder that holds the data set")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the best available by default")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, as in epochs=5 or train.epochs=5; can be repeated"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/NAME-BUDGET by default")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands without running them")] = False,
) -> Answer:
    """Run one of the paper's experiments, or all of a table. Every setting that differs from the paper's is printed.

    The same command continues an experiment that was stopped.

    Examples:

        prunus reproduce

        prunus reproduce resnet56-cifar10-b --weights w.pt --budget cpu

        prunus reproduce table1 --budget smoke

        prunus reproduce vgg16-imagenet-a --data imagenet:ILSVRC --dry-run
    """
    from prunus.cli import build
    from prunus.studies.recipes import (
        all_commands,
        at_budget,
        commands,
        load_recipe,
        missing,
        recipe_names,
        recipes_called,
    )

    if name is None:
        known = [load_recipe(each) for each in recipe_names()]
        console.print(table(("name", "in the paper", "title"), [[r.name, r.paper, r.title] for r in known]))
        say("\nprunus reproduce NAME --budget smoke|cpu|full; --dry-run prints the commands")
        say("NAME can also be a table or figure: table1 runs all recipes of Tables 1a and 1b")
        return Answer({"recipes": {r.name: {"paper": r.paper, "title": r.title} for r in known}})
    names = recipes_called(name)
    if weights is not None and len(names) > 1:
        raise RunError(f"{name} has several networks; give --weights to one recipe at a time: {', '.join(names)}")
    how: dict[str, Any] = {"data": data, "is_trained": weights is not None}
    chosen = [at_budget(load_recipe(each), budget, change or (), **how) for each in names]
    recipes, folder = [recipe for recipe, _ in chosen], out or Path("runs") / f"{name}-{budget}"
    if len(recipes) == 1:
        steps = commands(recipes[0], folder, weights=weights, device=device, root=data_root)
    else:
        steps = all_commands(recipes, folder, device=device, root=data_root)
    _print_plan(chosen, budget, steps)
    for words in steps:
        check(words)
    answer = {"recipes": list(names), "budget": budget, "folder": folder, "commands": steps}
    if dry_run:
        return Answer(answer)
    lacking = missing(steps)
    if lacking is not None:
        raise RunError(f"{name} needs {lacking}; or use --budget smoke, which needs nothing")
    reached = True  # every goal on the way
    for words in steps:
        console.print(f"\n{shlex.join(['prunus', *words])}", soft_wrap=True, style="bold")
        try:
            build()(args=words, standalone_mode=False)  # a PrunusError prints its message and exits
        except SystemExit as end:
            if end.code != EXIT_MISSED:
                raise
            reached = False
    return Answer({**answer, "reached": reached}, reached)


def check(words: list[str]) -> dict[str, Any]:
    """Parse a command without running it, so that a wrong option is found before the first step runs for hours."""
    command, rest = _parser(), list(words)
    context = command.context_class(command, info_name="prunus")
    while hasattr(command, "resolve_command"):
        step, command, rest = command.resolve_command(context, rest)
        context = command.context_class(command, parent=context, info_name=step)
    command.parse_args(context, list(rest))
    return dict(context.params)


@cache
def _parser() -> Any:
    from prunus.cli import build

    return typer.main.get_command(build())


def _print_plan(chosen: list[tuple[Recipe, list[Change]]], budget: str, steps: list[list[str]]) -> None:
    from prunus.studies.recipes import published_row

    printed: set[str] = set()  # what is true of several recipes is printed once
    for number, (recipe, changes) in enumerate(chosen):
        say(f"{chr(10) if number else ''}{recipe.title} ({recipe.paper})")
        row = published_row(recipe)
        if row is not None:
            cut = f"{row.macs_removed}% of MACs and {row.params_removed}% of weights removed"
            say(f"as published: top-1 {row.base_top1} -> {row.top1}%, {cut}")
        lines = [f"left open in the paper: {text}" for text in recipe.left_open]
        lines += [f"different from the paper: {text}" for text in recipe.departs]
        for line in lines:
            if line not in printed:
                say(line)
        printed |= set(lines)
        say(
            f"\nchanged from the recipe (budget {budget}):" if changes else f"\nno setting is changed (budget {budget})"
        )
        for change in changes:
            say(f"  {change}")
    say("\ncommands:")
    for words in steps:
        say(f"  {shlex.join(['prunus', *words])}")
