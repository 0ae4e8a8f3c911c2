"""Markdown from the code: the registries, the parser of the command line, the public names, files of the root."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import typer
from typer.main import get_command

import prunus
from prunus.cli import build
from prunus.deciding.costs import COSTS
from prunus.deciding.settings import SPLITS
from prunus.repairing.repair import REPAIRS
from prunus.scoring.metrics import METRICS
from prunus.tasks import TASKS
from prunus.timing.engines import ENGINES
from prunus.util.options import default_of, options_of
from prunus.util.registry import Registry

ROOT = Path(__file__).parents[1]
REGISTRIES = {
    "metrics": METRICS,
    "costs": COSTS,
    "splits": SPLITS,
    "repairs": REPAIRS,
    "tasks": TASKS,
    "engines": ENGINES,
}
# The public names by the room that they live in, in the order of the page. Other rooms follow under their own name.
ROOMS = {
    "run": "The whole job",
    "graph": "The structure of a network",
    "scoring": "Scores of channels",
    "deciding": "How much to remove where",
    "repairing": "Repair",
    "train": "Training",
    "tasks": "Tasks and their quality",
    "timing": "Time",
    "ship": "Shipping",
    "report": "Pages",
    "studies": "The paper's studies",
    "errors": "Errors",
}

ROOT_FILES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}


def registry(name: str) -> str:
    """A table of the entries of one registry: name and line of help."""
    entries: Registry = REGISTRIES[name]
    rows = [f"| `{entry}` | {cell(entries.help(entry))} |" for entry in entries]
    return "\n".join([f"| {entries.what} | |", "|---|---|", *rows])


def names(_: str) -> str:
    """Every public name, as mkdocstrings asks for it, by room; and the options of settings classes as tables."""
    rooms: dict[str, list[str]] = {room: [] for room in ROOMS}
    for name in prunus.__all__:
        rooms.setdefault(f"{prunus._HOMES[name]}.{name}".split(".")[1], []).append(name)
    parts = []
    for room, found in rooms.items():
        parts += [f"## {ROOMS.get(room, room)}"] if found else []
        for name in sorted(found, key=lambda name: (name[0].isupper(), name)):
            parts.append(f"::: prunus.{name}")
            kind = getattr(prunus, name)
            fields = list(options_of(kind)) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else []
            rows = [f"| `{field.name}` | `{default_of(field)!r}` | {cell(about.help)} |" for field, about in fields]
            parts += ["\n".join(["| setting | default | |", "|---|---|---|", *rows])] if rows else []
    return "\n\n".join(parts)


def command_line(_: str) -> str:
    """Every verb of the command line with its help, arguments and options."""
    parts = []
    for path, command in verbs():
        parts += [f"## prunus {' '.join(path)}", _help(command), _parameters(command)]
    return "\n\n".join(part for part in parts if part)


def verbs() -> Iterator[tuple[tuple[str, ...], typer.core.TyperCommand | typer.core.TyperGroup]]:
    """The verbs and the groups of verbs, in the order of `prunus --help`."""
    whole = get_command(build())
    assert isinstance(whole, typer.core.TyperGroup)
    for name, command in whole.commands.items():
        yield (name,), command
        if isinstance(command, typer.core.TyperGroup):
            yield from (((name, inner), found) for inner, found in command.commands.items())


def root_file(name: str) -> str:
    """A file of the repository's root as a page: its links into docs/ are links between pages."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for other, page in ROOT_FILES.items():
        text = text.replace(f"]({other})", f"]({page})")
    return text


def drawing(path: str, caption: str) -> str:
    """A drawing of docs/assets/drawings with its caption, as HTML."""
    svg = (ROOT / "docs" / path).read_text(encoding="utf-8").strip()
    return f'<figure class="drawing">\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>'


def _help(command: typer.core.TyperCommand | typer.core.TyperGroup) -> str:
    """The help as Markdown: examples, which are indented, lose the empty lines between them."""
    text = inspect.cleandoc(command.help or "").replace("\b", "")
    return re.sub(r"(?<=\n)(    \S.*)\n\n(?=    \S)", r"\1\n", text)


def _parameters(command: typer.core.TyperCommand | typer.core.TyperGroup) -> str:
    """Tables of a verb's arguments and options, by panel."""
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        panel = getattr(parameter, "rich_help_panel", None) or parameter.param_type_name.capitalize() + "s"
        panels.setdefault(panel, []).append(_row(parameter))
    tables = []
    for panel, rows in panels.items():
        tables.append("\n".join([f"| {panel} | |", "|---|---|", *rows]))
    return "\n\n".join(tables)


def _row(parameter: typer.core.TyperArgument | typer.core.TyperOption) -> str:
    typed = [*parameter.opts[:1], *parameter.secondary_opts[:1]]
    if isinstance(parameter, typer.core.TyperArgument):
        typed = [str(parameter.name).upper()]
    words = cell(parameter.help or "")
    if parameter.default not in (None, False, (), "") and not callable(parameter.default):
        words += " (default: on)" if parameter.default is True else f" (default: `{parameter.default}`)"
    return f"| {', '.join(f'`{word}`' for word in typed)} | {words} |"


def cell(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


PARTS = {
    "registry": registry,
    "names": names,
    "command_line": command_line,
    "file": root_file,
}
