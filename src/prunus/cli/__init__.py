"""The command line: one file per verb. Each parses options, calls the library, prints, and sets the exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated

import typer

# Each is a module of this package that defines `command` (a function) or `app` (a typer.Typer with its own verbs).
VERBS = "prune curve report check inspect evaluate train export bench show data study reproduce".split()  # noqa: SIM905


def _print_version(wanted: bool) -> None:
    if wanted:
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
        help="Make a trained vision network faster and smaller: a network and images in, a network of the same class "
        "with fewer channels out.\n\n"
        "    prunus prune MODEL --data DATA --weights FILE --speedup 1.5\n\n"
        "measures in onnxruntime, on one image and one thread, unless --engine, --batch and --threads say otherwise. "
        "`prunus check` says beforehand what can be reached.\n\n"
        "Exit codes: 0 done, 1 an error, or something looks wrong, 2 a wrong command line, 3 the goal was not reached.",
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
        ] = False,
    ) -> None:
        pass

    for verb in VERBS:
        module = importlib.import_module(f"prunus.cli.{verb}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb)
        else:
            app.command(verb)(module.command)
    return app


def main() -> None:
    try:
        build()()
    except KeyboardInterrupt:  # while the verbs are still being imported
        sys.exit(130)
