"""`secateur study NAME`: the paper's experiments as commands. Each study is a file that defines `command`."""

from __future__ import annotations

import importlib

import typer

# study -> module in this package that defines `command`.
STUDIES: dict[str, str] = {
    "effectiveness": "effectiveness",
    "sensitivity": "sensitivity",
    "structure": "structure",
    "table": "table",
    "timing": "timing",
}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.callback()
def root() -> None:
    """The paper's experiments, on any network and data set: a table, pictures and a page in one folder.

    The same command continues a study that was stopped.

    Example:

        secateur study effectiveness resnet56=w.safetensors --data cifar10
    """


for study, module_name in STUDIES.items():
    app.command(study)(importlib.import_module(f"secateur.cli.studies.{module_name}").command)
