"""The command line: one file per verb. Each parses options, calls the library, prints, and sets the exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

# verb -> module in this package, which defines `command` (a function) or `app` (a typer.Typer with its own verbs).
VERBS = {
    "prune": "prune",
    "report": "report",
    "compare": "compare",
    "watch": "watch",
    "score": "score",
    "sensitivity": "sensitivity",
    "show": "show",
    "data": "data",
    "check": "check",
    "evaluate": "evaluate",
    "inspect": "inspect",
    "train": "train",
    "models": "models",
    "export": "export",
    "bench": "bench",
    "latency": "latency",
    "study": "study",
    "reproduce": "reproduce",
}


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"prunus {version('prunus')}")
        raise typer.Exit


def build() -> typer.Typer:
    """The typer application with every verb registered."""
    app = typer.Typer(
        name="prunus",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        help="Channel pruning for CNN classifiers: a trained network and labelled images in, a smaller network out.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass

    for verb, module_name in VERBS.items():
        module = importlib.import_module(f"prunus.cli.{module_name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(verb)(module.command)
    return app


def main() -> None:
    """Entry point of the console script."""
    try:
        build()()
    except KeyboardInterrupt:  # while the verbs are still being imported
        sys.exit(130)
