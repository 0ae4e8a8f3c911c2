"""Errors that a user's own code raises, in one line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]


def failure(error: BaseException) -> str:
    """The error and the user's line that led to it: "ValueError: no such mode (net.py:12)".

    Lines of installed packages and of secateur are passed over, if there is any other. TorchScript puts a traceback of
    its own into the message; its last line is the error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _installed(frame.filename)]
    place = (own or frames)[-1:]
    where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
    text = str(error).strip()
    if "Traceback of TorchScript" in text:
        text = text.splitlines()[-1]
    return f"{type(error).__name__}: {text}{where}"


def _installed(filename: str) -> bool:
    path = Path(filename)
    return "site-packages" in path.parts or _PACKAGE in path.parents or filename.startswith("<")


def cannot_take(function: Callable[..., Any], *arguments: str) -> str | None:
    """Why a function cannot be called with these positional arguments; None if it can, or if it does not say."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # written in C: it has no signature
        return None
    return None
