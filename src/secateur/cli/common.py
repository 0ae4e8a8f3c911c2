"""What all verbs share: the console, and the exit codes of errors."""

from __future__ import annotations

import errno
import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.text import Text

from secateur.cli.early_checks import run_early_checks
from secateur.errors import FileError, SecateurError

P = ParamSpec("P")
T = TypeVar("T")

console = Console(highlight=False, markup=False)  # names of files and networks may have square brackets
complaints = Console(stderr=True, highlight=False, markup=False)

EXIT_ERROR = 1  # a SecateurError: wrong input, a missing file, a goal that cannot be reached
EXIT_INTERRUPTED = 130


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """Print a SecateurError as one red line on stderr and exit with code 1. Other exceptions give a traceback."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit():  # it may have changed since this module was imported
            console.width = complaints.width = int(columns)
        try:
            run_early_checks(verb, kwargs)
            return verb(*args, **kwargs)
        except SecateurError as error:
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
    return shlex.join(["secateur", *sys.argv[1:]])


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
