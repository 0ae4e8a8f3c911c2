"""Libraries in C++ that print to the terminal and may end the process: silenced, and tried in a child process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prunus.errors import ModelError
from prunus.util.user_code import failure

LONGEST = 600.0  # seconds of a child process


@contextmanager
def native_output_dropped() -> Iterator[None]:
    """What C++ code writes to stdout and stderr goes nowhere: Python's own streams cannot stop it."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(stream) for stream in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, before in zip((1, 2), kept, strict=True):
            os.dup2(before, stream)
            os.close(before)
        os.close(nowhere)


@contextmanager
def silent() -> Iterator[None]:
    """For packages that warn about one another, in Python, in logs and from C++."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), native_output_dropped():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def attempt(failed: str) -> Iterator[None]:
    """Code of such packages, which may raise anything: a ModelError that begins with `failed`."""
    try:
        with silent():
            yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{failed}: {failure(error)}") from error


def run_child(command: Sequence[str], failed: str) -> str:
    """Run a command and return what it printed. ModelError, which begins with `failed`, if it does not end well."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{failed}: it took more than {LONGEST:g} seconds") from error
    except OSError as error:
        raise ModelError(f"{failed}: {error.strerror or error}") from error
    text = (done.stdout + b"\n" + done.stderr).decode(errors="replace").strip()
    if done.returncode:
        how = f"it crashed (signal {-done.returncode})" if done.returncode < 0 else f"exit code {done.returncode}"
        last = text.splitlines()[-1] if text else ""
        raise ModelError(f"{failed}: {how}" + (f", {last}" if last else ""))
    return text


def python_child(code: str, *arguments: str) -> list[str]:
    """The command that runs Python code with these arguments; nothing of the caller's folder is imported."""
    return [sys.executable, "-P", "-c", code, *arguments]
