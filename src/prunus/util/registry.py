"""Named choices of one kind: metrics, tasks, costs, splits, repairs, engines.

A registry reads the modules of a package (or one module). An entry is declared there once, at the top level: as a call
with the keywords `name` and `help`, or as a function under a decorator called `what`, which sets its `entry`.

    EAGER = Engine(name="eager", help="PyTorch as it is", make=...)

    @metric("Generalised symmetric divergence, the paper's metric", needs="moments")
    def gsd(channels): ...

Names and help are read from the source, so that they can be listed without importing any entry (and torch with it).

Where a function of the user can be an entry, `module:function` is a name too.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from prunus.errors import PrunusError
from prunus.util.user_code import import_user_function, is_function_name


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A named choice. A kind of choice derives from this and adds its function and what that function needs."""

    name: str = ""
    help: str = ""


E = TypeVar("E", bound=Entry)


class Registry(Mapping[str, E], Generic[E]):
    """The entries of one kind by name, in alphabetical order.

    Args:
        what: What an entry is called in messages ("metric").
        package: The package or module that declares the entries.
        error: The class of the error that an unknown name raises.
        of_function: Makes an entry of a user-provided function; None: there are no such entries.
    """

    def __init__(
        self,
        what: str,
        package: str,
        error: type[PrunusError],
        of_function: Callable[[Callable[..., Any]], E] | None = None,
    ) -> None:
        self.what, self._package, self._error, self._of_function = what, package, error, of_function
        self._registered: dict[str, E] = {}  # at run time

    def __repr__(self) -> str:
        return f"Registry({self.what}: {', '.join(self)})"

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._declared, *self._registered}))

    def __len__(self) -> int:
        return len({*self._declared, *self._registered})

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._registered or name in self._declared)

    def __getitem__(self, name: str) -> E:
        """The entry of this name. Mapping's contract asks for KeyError; `find` gives the message a user can act on."""
        if name in self._registered:
            return self._registered[name]
        module = import_module(self._declared[name][0])
        entries = (getattr(value, "entry", value) for value in vars(module).values())
        return next(entry for entry in entries if isinstance(entry, Entry) and entry.name == name)  # type: ignore[return-value]

    def find(self, name: str) -> E:
        """The entry of this name, or an error that lists the nearest names."""
        if self._of_function is not None and self.names_function(name):
            return self._of_function(import_user_function(name, self._error))
        self.check(name)
        return self[name]

    def check(self, name: str) -> None:
        """Raise an error that lists the nearest names unless there is an entry of this name. Imports no entry."""
        if self.names_function(name):
            import_user_function(name, self._error)
        elif name not in self:
            raise self._error(unknown(self.what, name, self))

    def names_function(self, name: object) -> bool:
        """Whether a name is that of a user-provided function, `module:function`, and not of an entry with options."""
        if self._of_function is None or not isinstance(name, str) or not is_function_name(name):
            return False
        return name.partition(":")[0] not in self

    def split_options(self, name: str) -> tuple[str, list[str]]:
        """The name of an entry, or `module:function`, and the options behind it: gsd:ridge=0 -> gsd, [ridge=0]."""
        parts = name.split(":")
        length = 2 if self.names_function(":".join(parts[:2])) else 1
        return ":".join(parts[:length]), parts[length:]

    def help(self, name: str) -> str:
        """One line about an entry, without importing it."""
        return self._registered[name].help if name in self._registered else self._declared[name][1]

    def register(self, entry: E) -> E:
        """Add a user-provided entry under its name. A name that is taken is an error."""
        if not isinstance(entry, Entry):
            raise self._error(f"a {self.what} must be an entry of its registry, got {type(entry).__name__}")
        if not entry.name or entry.name in self:
            reason = f"{entry.name!r} is taken" if entry.name else "it has none"
            raise self._error(f"a {self.what} needs a name of its own: {reason}")
        self._registered[entry.name] = entry
        return entry

    @cached_property
    def _declared(self) -> dict[str, tuple[str, str]]:
        """Name -> module and help of each entry, read from the source."""
        spec = find_spec(self._package)
        assert spec is not None and spec.origin is not None
        files = {self._package: Path(spec.origin)}
        for place in spec.submodule_search_locations or ():
            files |= {f"{self._package}.{path.stem}": path for path in Path(place).glob("[!_]*.py")}
        declared: dict[str, tuple[str, str]] = {}
        for module, path in files.items():
            for statement in ast.parse(path.read_text(encoding="utf-8")).body:
                for mark in getattr(statement, "decorator_list", ()):
                    if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == self.what:
                        declared[statement.name] = module, ast.literal_eval(mark.args[0])  # type: ignore[attr-defined]
                call = getattr(statement, "value", None)
                if isinstance(call, ast.Call):
                    texts = {k.arg: str(k.value.value) for k in call.keywords if isinstance(k.value, ast.Constant)}
                    if "name" in texts and "help" in texts:
                        declared[texts["name"]] = module, texts["help"]
        return declared


def import_homes(file: str) -> dict[str, str]:
    """Name -> its module, as a package's __init__.py imports them for type checkers; read from the source, too."""
    blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def unknown(what: str, name: str, known: Mapping[str, object] | list[str] | tuple[str, ...]) -> str:
    """The message for a name that does not exist: the nearest names first, then all of them."""
    guess = f": did you mean {' or '.join(near)}?" if (near := nearest(name, known)) else "."
    return f"there is no {what} called {name!r}{guess} Available: {', '.join(known)}"


def nearest(name: object, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that look like a name, or begin with it."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=most, cutoff=0.6)
    begin = [one for one in names if len(str(name)) > 1 and one.startswith(str(name)) and one not in near]
    return [*near, *begin][:most]


def guessed(name: object, known: Iterable[str]) -> str:
    """ " (did you mean NAME?)", or nothing if no known name looks like it."""
    near = nearest(name, known)
    return f" (did you mean {near[0]}?)" if near else ""
