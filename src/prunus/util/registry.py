"""Named choices of one kind: metrics, costs, splits, repairs, engines.

A kind of choice is a package, and each entry is a module in it. The module's name is the entry's name, the first line
of its docstring is its line of help, and its `ENTRY` is the object itself. So adding an entry means adding one file,
and names and help can be listed without importing any entry (and torch with it).
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

from prunus.errors import PrunusError


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A named choice. A kind of choice derives from this and adds its function and what that function needs."""

    name: str = ""  # both are filled in by the registry
    help: str = ""


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """The entries of one kind by name, in alphabetical order. Modules whose name starts with `_` are not entries.

    what: what an entry is called in messages ("metric"). package: the package that holds the entries.
    error: the class of the error that an unknown name raises.
    """

    def __init__(self, what: str, package: str, error: type[PrunusError]) -> None:
        self.what = what
        self._package = package
        self._error = error
        self._loaded: dict[str, E] = {}
        self._own: dict[str, E] = {}  # registered at run time

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._files(), *self._own}))

    def __len__(self) -> int:
        return len({*self._files(), *self._own})

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._own or name in self._files())

    def __getitem__(self, name: str) -> E:
        """The entry of this name. Mapping's contract asks for KeyError; `find` gives the message a user can act on."""
        if name in self._own:
            return self._own[name]
        if name not in self._loaded:
            if name not in self._files():
                raise KeyError(name)
            entry: E = import_module(f"{self._package}.{name}").ENTRY
            self._loaded[name] = replace(entry, name=name, help=self.help(name))
        return self._loaded[name]

    def find(self, name: str) -> E:
        """The entry of this name, or an error that lists the nearest names."""
        self.check(name)
        return self[name]

    def check(self, name: str) -> None:
        """Raise an error that lists the nearest names unless there is an entry of this name. Imports no entry."""
        if name not in self:
            raise self._error(unknown(self.what, name, self))

    def help(self, name: str) -> str:
        """One line about an entry, read from its docstring without importing it."""
        if name in self._own:
            return self._own[name].help
        docstring = ast.get_docstring(ast.parse(self._files()[name].read_text(encoding="utf-8"))) or ""
        return docstring.partition("\n")[0].rstrip(".")

    def register(self, entry: E) -> E:
        """Add an entry of the user's own, under its name. A name that is taken is an error."""
        if not isinstance(entry, Entry):
            raise self._error(f"a {self.what} must be an entry of its registry, got {type(entry).__name__}")
        if not entry.name or entry.name in self:
            reason = f"{entry.name!r} is taken" if entry.name else "it has none"
            raise self._error(f"a {self.what} needs a name of its own: {reason}")
        self._own[entry.name] = entry
        return entry

    def _files(self) -> dict[str, Path]:
        spec = find_spec(self._package)
        places = spec.submodule_search_locations if spec else None
        files = [path for place in places or () for path in Path(place).glob("[!_]*.py")]
        return {path.stem: path for path in files}


def unknown(what: str, name: str, known: Mapping[str, object] | list[str] | tuple[str, ...]) -> str:
    """The message for a name that does not exist: the nearest names first, then all of them."""
    near = nearest(name, known)
    guess = f": did you mean {' or '.join(near)}?" if near else "."
    return f"there is no {what} called {name!r}{guess} Available: {', '.join(known)}"


def nearest(name: object, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like a name, or begin with it."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    begin = [one for one in names if len(str(name)) > 1 and one.startswith(str(name)) and one not in near]
    return [*near, *begin][:3]


def guessed(name: object, known: Iterable[str]) -> str:
    """ " (did you mean NAME?)", or nothing if no known name looks like it."""
    near = nearest(name, known)
    return f" (did you mean {near[0]}?)" if near else ""
