"""User-provided functions, named as `module:function`: they are imported and called, and errors said in one line."""

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


def is_function_name(name: str) -> bool:
    """Whether a name has the form `module:function`."""
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def import_user_function(name: str, error: type[PrunusError]) -> Callable[..., Any]:
    """The function that `module:function` names; `error` with the reason if it cannot be imported."""
    module_name, _, attribute = name.partition(":")
    with current_folder_importable():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as missing:
            cure = f"no module named {missing.name!r}; install it or put it into the current folder, {Path.cwd()}"
            if module_name.endswith(".py"):
                cure = "leave out .py, as in package.module:function"
            raise error(f"{name!r}: {cure}") from missing
        except Exception as other:  # importing a user's module may raise anything
            raise error(f"{name!r}: importing {module_name} failed with {type(other).__name__}: {other}") from other
    function = getattr(module, attribute, None)
    if not callable(function):
        raise error(f"{name!r}: the module {module_name} has no callable {attribute!r}")
    return function  # type: ignore[no-any-return]


def call_user_function(name: str, error: type[PrunusError], **arguments: Any) -> Any:
    """What the function that `module:function` names returns; whatever it raises becomes an `error`."""
    function = import_user_function(name, error)
    with current_folder_importable():  # the function may import more
        try:
            return function(**arguments)
        except Exception as other:
            raise error(f"{name!r} failed with {failure(other)}") from other


def failure(error: BaseException) -> str:
    """The error and the user's line that led to it: "ValueError: no such mode (net.py:12)".

    Lines of installed packages and of prunus are passed over. TorchScript puts another traceback into the message; its
    last line is the error.
    """
    place = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_installed(frame.filename)][-1:]
    where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
    text = str(error).strip()
    if "Traceback of TorchScript" in text:
        text = text.splitlines()[-1]
    return f"{type(error).__name__}: {text}{where}"


def is_of_user(error: BaseException) -> bool:
    """Whether an error comes out of a user's code that prunus called, directly or through a package."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = next((number for number, file in enumerate(files) if _PACKAGE in Path(file).parents), len(files))
    return any(not _is_installed(file) for file in files[ours:])


def _is_installed(filename: str) -> bool:
    path = Path(filename)
    return "site-packages" in path.parts or _PACKAGE in path.parents or filename.startswith("<")


def cannot_take(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str | None:
    """Why a function cannot be called with these arguments; None if it can, or if it does not say."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError as error:
        return str(error)
    except ValueError:  # written in C: it has no signature
        pass
    return None


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
