"""What all verbs share: output, the exit codes of errors, and checks of values before anything slow is imported."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prunus.errors import FileError, PrunusError
from prunus.util.options import check_choice
from prunus.util.typed_json import finite, to_data
from prunus.util.user_code import failure, is_of_user

# Names of files, networks and units may have square brackets and colons, which are no markup.
console = Console(highlight=False, markup=False, emoji=False)
complaints = Console(stderr=True, highlight=False, markup=False, emoji=False)

# Exit codes. 2 is a command that cannot be parsed (typer's own).
EXIT_ERROR = 1  # a PrunusError: wrong input, a missing file, a goal that cannot be reached
EXIT_MISSED = 3  # the work is done, and the goal was not reached
EXIT_INTERRUPTED = 130
PIPED_WIDTH = 1000  # in a file or a pipe, where there are no columns to fit into, rows of tables are not broken


@dataclass(frozen=True)
class Answer:
    """What a verb found: `record` is what --json prints. Exit code 3 if a goal was not `reached`, or another `code`."""

    record: Mapping[str, Any]
    reached: bool = True
    code: int = 0


Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object", rich_help_panel="Output")]


def friendly(verb: Callable[..., Answer | None]) -> Callable[..., None]:
    """What every verb has: options of its settings, --json, and exit codes. A PrunusError is one red line on stderr.

    A verb prints for people with `say` and `console`, and returns an `Answer`. With --json what it prints is left out,
    what other code prints goes to stderr, and the answer is printed instead. None is no answer: of several processes
    only the first one has one.

    Paragraphs of the docstring become single lines, which `--help` wraps to the terminal. Indented lines are examples.
    """
    from prunus.cli.options import options_from_settings

    verb = options_from_settings(verb)
    hints = get_type_hints(verb, include_extras=True)

    @functools.wraps(verb)
    def run(*, as_json: bool = False, **values: Any) -> None:
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit():  # it may have changed since this module was imported
            console.width = complaints.width = int(columns)
        elif not console.is_terminal:
            console.width = PIPED_WIDTH
        outer, console.quiet = console.quiet, console.quiet or as_json
        code = EXIT_ERROR
        try:
            with redirect_stdout(sys.stderr) if as_json else nullcontext():
                for name, hint in hints.items():
                    value = values.get(name)
                    for mark in getattr(hint, "__metadata__", ()):
                        if isinstance(mark, Early) and value is not None:
                            for each in value if isinstance(value, list) else [value]:
                                mark.check(each)
                answer = verb(**values)
            if answer is None:
                return
            if as_json:
                sys.stdout.write(f"{json.dumps(finite(to_data(answer.record)), indent=1)}\n")
            code = answer.code or (0 if answer.reached else EXIT_MISSED)
        except Exception as error:
            message = _in_a_line(error)
            if message is None:
                raise
            complain("error", message, "bold red")
        except KeyboardInterrupt:
            complaints.print("interrupted")
            code = EXIT_INTERRUPTED
        finally:
            console.quiet = outer
        if code:
            sys.exit(code)

    given = [each.replace(annotation=hints[name]) for name, each in inspect.signature(verb).parameters.items()]
    added = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    run.__signature__ = inspect.Signature([*given, added])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, "as_json": Json}
    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(p if p.startswith(" ") else p.replace("\n", " ") for p in paragraphs)
    return run


def _in_a_line(error: Exception) -> str | None:
    """What a user can mend, in a line: wrong input, a full disk or memory, an error in code of their own; else None."""
    if isinstance(error, PrunusError):
        return str(error)
    if isinstance(error, OSError) and (error.filename, error.errno) != (None, None):  # a disk, a permission, a network
        return str(error)
    # torch raises RuntimeError on the CPU, and a class of its own, which is a RuntimeError too, on GPUs.
    full = isinstance(error, RuntimeError) and any(w in str(error) for w in ("can't allocate memory", "out of memory"))
    if full or isinstance(error, MemoryError):
        line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        line = line.partition("DefaultCPUAllocator: ")[2] or line  # without the place in torch's code
        return f"there is not enough memory: {line}"
    return failure(error) if isinstance(error, OSError) or is_of_user(error) else None


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


def typed_command() -> str:
    return shlex.join(["prunus", *sys.argv[1:]])


def say(text: str = "") -> None:
    """Print a line, which the terminal wraps: piped, it stays one line."""
    console.print(text, soft_wrap=True)


def complain(kind: str, text: str, style: str = "yellow") -> None:
    """Print a note, a warning or an error on stderr."""
    complaints.print(Text.assemble((f"{kind}:", style), f" {text}"), soft_wrap=True)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> Table:
    """A table without lines, as wide as the terminal at most. A row may be shorter than the titles.

    Columns with a title in `numbers` are right-aligned, and their cells are never broken; others are if they must. If
    the table is too wide, titles of numbers are broken between words.
    """
    drawn = Table(box=None, pad_edge=False)
    columns = [[row[place] for row in rows if place < len(row)] for place in range(len(titles))]
    widths = [max(map(len, (title, *cells))) for title, cells in zip(titles, columns, strict=True)]
    too_wide = sum(widths) + 2 * (len(widths) - 1) > console.width
    for title, cells in zip(titles, columns, strict=True):
        number = title in numbers
        if number and too_wide:
            title = textwrap.fill(title, max(map(len, (*title.split(), *cells))), break_on_hyphens=False)
        drawn.add_column(title, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn


def default_folder(name: str) -> Path:
    """runs/NAME, where NAME may contain a model or data set with slashes and colons in it."""
    return Path("runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


# -- checks of single values before a verb begins, and so before torch is imported


@dataclass(frozen=True)
class Early:
    """Marks a parameter of a verb: `check` raises a PrunusError for a wrong value, each one of a list."""

    check: Callable[[Any], object]


def choice(option: str, *choices: str) -> Early:
    return Early(lambda value: check_choice(option, value, choices, PrunusError))


def existing_file(path: Path) -> None:
    if not path.is_file():
        raise FileError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}")


def existing_folder(path: Path) -> None:
    if not path.is_dir():
        raise FileError(f"{path} {'is a file, not a folder' if path.is_file() else 'does not exist'}")
