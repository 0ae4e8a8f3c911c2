"""What all verbs share: the console, and the exit codes of errors."""

from __future__ import annotations

import errno
import functools
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from rich.console import Console
from rich.text import Text

from prunus.errors import FileError, ModelError, PrunusError
from prunus.score.metrics import METRICS
from prunus.util.files import PRUNING, TRAINING, held_by
from prunus.util.options import check_choice
from prunus.zoo.names import check_model, check_weight_file

# The MODEL argument of every verb: a name, NAME=WEIGHTS, or the folder of a run or a pruned network.

MODEL_HELP = "Built-in name, torchvision:NAME, timm:NAME, package.module:factory, NAME=WEIGHTS, or a run's folder"


@dataclass(frozen=True)
class ModelArgument:
    """What the user named."""

    typed: str
    name: str  # of the network that everything starts from, in the zoo or the user's own
    weights: Path | None = None
    folders: tuple[Path, ...] = ()  # pruned networks: the first was cut from `name`, each other from the one before
    asked: Mapping[str, Any] = field(default_factory=dict)  # the options of the run, by name

    @property
    def is_own(self) -> bool:
        """Whether the user's own factory, package.module:factory, builds the network."""
        return is_own(self.name)

    @property
    def has_weights(self) -> bool:
        """Whether the network comes with weights. A factory of the user's own may load some, so it counts."""
        return self.weights is not None or bool(self.folders) or self.is_own

    @property
    def label(self) -> str:
        """A short name for titles and new folders."""
        return Path(self.typed).resolve().name if Path(self.typed).is_dir() else self.name


def is_own(name: str) -> bool:
    """Whether a name is that of the user's own factory, package.module:factory."""
    return ":" in name and not name.startswith(("torchvision:", "timm:"))


def resolve(typed: str, model: str | None = None) -> ModelArgument:
    """The network that `typed` names.

    model: the original network of a folder that does not record it.
    """
    folder = Path(typed)
    if folder.is_dir():
        return _from_folder(typed, folder, model)
    name, equals, weights = typed.partition("=")
    if ":" not in name and ("/" in name or name.startswith(".")):
        raise ModelError(f"{typed}: there is no such folder; a network is a folder, a name or NAME=WEIGHTS")
    if equals and not (name and weights):
        raise ModelError(f"{typed}: expected NAME=WEIGHTS, as in resnet56=resnet56.safetensors")
    return ModelArgument(typed, name, Path(weights) if equals else None)


def _from_folder(typed: str, folder: Path, model: str | None) -> ModelArgument:
    held = held_by(folder)
    if held == TRAINING and (folder / "summary.json").exists():
        summary = _recorded(folder / "summary.json")
        return ModelArgument(
            typed, model or summary["model"], folder / "model.safetensors", asked=summary.get("command", {})
        )
    if not (folder / "plan.json").exists():
        if held == PRUNING:
            raise FileError(f"the run in {folder} is not finished; to continue it: prunus prune --resume {folder}")
        raise FileError(
            f"{folder} is a folder without plan.json"
            + (f" (it holds {held})" if held else "")
            + "; a pruned network has plan.json and model.safetensors"
        )
    asked = _recorded(folder / "config.json").get("command")
    asked = asked if isinstance(asked, dict) else {}
    name = model or asked.get("model")
    if not isinstance(name, str):
        raise ModelError(f"{folder} does not record its original network: pass --model NAME")
    try:
        start = resolve(name)
    except (FileError, ModelError) as error:
        raise ModelError(f"{folder} was pruned from {name}, which cannot be opened: {error}") from error
    if all(start.asked.get(key) == asked.get(key) for key in ("data", "holdout")):
        asked = {**asked, "seed": start.asked.get("seed", asked.get("seed", 0))}  # it divided the images for both
    return ModelArgument(typed, start.name, folders=(*start.folders, folder), asked=asked)


def _recorded(file: Path) -> dict[str, Any]:
    """An object in a file of a run; empty if there is no such file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FileError(f"{file} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


# Checks of single values before a verb begins, and so before torch is imported.


@dataclass(frozen=True)
class Early:
    """Marks a parameter of a verb: `check` raises a PrunusError for a wrong value."""

    check: Callable[[Any], object]


def run_early_checks(verb: Callable[..., Any], values: dict[str, Any]) -> None:
    """Check the values of a verb's parameters that are marked; each one of a list."""
    for name, hint in get_type_hints(verb, include_extras=True).items():
        value = values.get(name)
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Early) and value is not None:
                for each in value if isinstance(value, list) else [value]:
                    mark.check(each)


def choice(option: str, *choices: str) -> Early:
    """One of some words."""
    return Early(lambda value: check_choice(option, value, choices, PrunusError))


def network(text: str) -> None:
    """A name, NAME=WEIGHTS, or the folder of a run or a pruned network."""
    if not text:
        raise ModelError("the name of the network is empty")
    if Path(text).is_dir():  # which may need --model
        return
    found = resolve(text)
    check_model(found.name)
    if found.weights is not None:
        check_weight_file(found.weights)


def network_or_file(text: str) -> None:
    """What `network` takes, or an ONNX file."""
    if text.endswith(".onnx"):
        file(Path(text))
    else:
        network(text)


def file(path: Path) -> None:
    """A file that exists."""
    if not path.is_file():
        raise FileError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}")


def folder(path: Path) -> None:
    """A folder that exists."""
    if not path.is_dir():
        raise FileError(f"{path} {'is a file, not a folder' if path.is_file() else 'does not exist'}")


def metrics(text: str) -> None:
    """Names of metrics, separated by commas, each with options as in gsd:ridge=1; or all."""
    for name in names_in([text]):
        if name != "all":
            METRICS.check(name.partition(":")[0])


def names_in(given: Sequence[str]) -> list[str]:
    """The names in an option that can be repeated and can contain several names, separated by commas."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


weights = check_weight_file


P = ParamSpec("P")
T = TypeVar("T")

console = Console(highlight=False, markup=False)  # names of files and networks may have square brackets
complaints = Console(stderr=True, highlight=False, markup=False)

EXIT_ERROR = 1  # a PrunusError: wrong input, a missing file, a goal that cannot be reached
EXIT_INTERRUPTED = 130


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """Print a PrunusError as one red line on stderr and exit with code 1. Other exceptions give a traceback."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit():  # it may have changed since this module was imported
            console.width = complaints.width = int(columns)
        try:
            run_early_checks(verb, kwargs)
            return verb(*args, **kwargs)
        except PrunusError as error:
            complain("error", str(error), "bold red")
            sys.exit(EXIT_ERROR)
        except OSError as error:  # a disk, a permission, a network
            complain("error", str(error), "bold red")
            sys.exit(EXIT_ERROR)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            complain("error", f"there is not enough memory: {_first_line(error)}", "bold red")
            sys.exit(EXIT_ERROR)
        except KeyboardInterrupt:
            complaints.print("interrupted")
            sys.exit(EXIT_INTERRUPTED)

    return run


def typed_command() -> str:
    """The command as the user typed it."""
    return shlex.join(["prunus", *sys.argv[1:]])


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """After Ctrl-C, and where the disk was full, say which command continues the work."""
    try:
        yield
    except FileError as error:
        if getattr(error.__cause__, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FileError(f"{error}. Make room, then continue: {command}") from error
    except KeyboardInterrupt:
        complaints.print(f"interrupted; to continue: {command}", soft_wrap=True)
        sys.exit(EXIT_INTERRUPTED)


def complain(kind: str, text: str, style: str = "yellow") -> None:
    """Print a note, a warning or an error on stderr."""
    complaints.print(Text.assemble((f"{kind}:", style), f" {text}"), soft_wrap=True)


def _is_out_of_memory(error: Exception) -> bool:
    """torch raises RuntimeError on the CPU, and a class of its own, which is a RuntimeError too, on GPUs."""
    words = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _first_line(error: Exception) -> str:
    """torch's message without the place in its own code, and without advice for GPUs."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line.partition("DefaultCPUAllocator: ")[2] or line


def run_folder(name: str) -> Path:
    """runs/NAME, where NAME may contain a model or data set with slashes and colons in it."""
    return Path("runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


# Tables as plain text with aligned columns. They are never truncated.

GAP = "  "


def columns(
    titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = (), width: int | None = None
) -> str:
    """The table as text: titles, then rows. Columns whose title is in `numbers` are right-aligned.

    width: cells of several words continue on the next line where the table would be wider.
    """
    table = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(titles))]
    if width is not None:
        _narrow(widths, table, width)
    lines = []
    for row in table:
        for cells in _wrapped(row, widths):
            aligned = [
                cell.rjust(size) if title in numbers else cell.ljust(size)
                for cell, size, title in zip(cells, widths, titles, strict=True)
            ]
            lines.append(GAP.join(aligned).rstrip())
    return "\n".join(lines)


def blocks(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str], width: int) -> str:
    """A table with many columns as several tables, one below the other. Each begins with the first column."""
    parts: list[list[int]] = [[]]

    def table(which: Sequence[int]) -> str:
        return columns([titles[i] for i in which], [[row[i] for i in which] for row in rows], numbers)

    for column in range(1, len(titles)):
        if parts[-1] and max(map(len, table([0, *parts[-1], column]).splitlines())) > width:
            parts.append([])
        parts[-1].append(column)
    return "\n\n".join(table([0, *part]) for part in parts)


def _narrow(widths: list[int], table: Sequence[Sequence[str]], width: int) -> None:
    """Make the widest columns narrower until the table fits, but no column narrower than its longest word."""
    least = [max((len(word) for line in table for word in line[i].split()), default=0) for i in range(len(widths))]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        can = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not can:
            return
        widths[max(can, key=lambda i: widths[i])] -= 1


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    """The lines of a row."""
    cells = [
        textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False) if len(cell) > size else [cell]
        for cell, size in zip(row, widths, strict=True)
    ]
    for number in range(max(len(cell) for cell in cells)):
        yield [cell[number] if number < len(cell) else "" for cell in cells]
