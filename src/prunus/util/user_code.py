"""Errors that a user's own code raises, in one line."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prunus.errors import PrunusError

_PACKAGE = Path(__file__).parents[1]


def failure(error: BaseException) -> str:
    """The error and the user's line that led to it: "ValueError: no such mode (net.py:12)".

    Lines of installed packages and of prunus are passed over, if there is any other. TorchScript puts a traceback of
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


# Functions of the user's own, named on the command line as `module:function`.


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """Add the current folder to the import path, as `python -m` does; a console script does not."""
    before = list(sys.path)
    if "" not in before and str(Path.cwd()) not in before:
        sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def names_own_code(name: str) -> bool:
    """Whether a name has the form `module:function`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def own_function(name: str, error: type[PrunusError]) -> Callable[..., Any]:
    """The function that `module:function` names; `error` with the reason if it cannot be imported."""
    module_name, _, attribute = name.partition(":")
    with current_folder_importable():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            raise error(
                f"{name!r}: no module named {missing.name!r}; install it or put it into the current folder, "
                f"{Path.cwd()}"
            ) from missing
        except Exception as other:  # importing a user's module may raise anything
            raise error(f"{name!r}: importing {module_name} failed with {type(other).__name__}: {other}") from other
    found = getattr(module, attribute, None)
    if not callable(found):
        raise error(f"{name!r}: the module {module_name} has no callable {attribute!r}")
    return found  # type: ignore[no-any-return]


def made_by_own_function(name: str, error: type[PrunusError], **arguments: Any) -> Any:
    """What the function that `module:function` names returns; its errors become an `error` that says where."""
    factory = own_function(name, error)
    with current_folder_importable():
        try:
            return factory(**arguments)
        except Exception as other:  # a user's function may raise anything
            place = traceback.extract_tb(other.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            raise error(f"{name!r} failed with {type(other).__name__}: {other} ({where})") from other
