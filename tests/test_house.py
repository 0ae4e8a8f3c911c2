"""The rules of the house, checked on the source itself: imports run downhill, public names are in order, names in the
docs exist, and no file of the package speaks of the machine that it was written on."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import prunus

SOURCE = Path(prunus.__file__).parent
PROJECT = Path(__file__).parents[1]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
ROOT_PAGES = [PROJECT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")]
PAGES = [*ROOT_PAGES, *sorted((PROJECT / "docs").rglob("*.md"))]

# Each room may import the rooms before it (and itself): imports run downhill.
HILL = "errors util graph tasks timing scoring repairing deciding train plots run ship studies report cli".split()  # noqa: SIM905
ZOO_GUESTS = {"run", "ship", "studies", "report", "cli"}  # rooms that may import the zoo, which knows only util
SHELLS = {"studies", "report", "cli", "__main__"}  # rooms that may import the package itself


# The methods of a run's result are shortcuts to what can be done with it.
SHORTCUTS = {("run/compress.py", "prunus.ship.export"), ("run/compress.py", "prunus.report.run_page")}


def module_name(path: Path) -> str:
    parts = ["prunus", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`prunus.graph.plan` -> `graph`; the package itself has no room."""
    return module.split(".")[1] if "." in module else ""


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of prunus that a file imports, at its top or inside a function."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"prunus.{a.name}" for a in node.names] if node.module == "prunus" else [node.module or ""]
        yield from (name for name in names if name.partition(".")[0] == "prunus")


def is_downhill(importer: str, target: str) -> bool:
    if importer in ("", "__main__", target) or target == "errors":
        return True
    if target == "zoo":
        return importer in ZOO_GUESTS
    if importer == "zoo":
        return target == "util"
    if target not in HILL:  # the package, or a public name of it
        return importer in SHELLS
    return HILL.index(target) < HILL.index(importer)


def test_imports_run_downhill() -> None:
    uphill = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path, tree in TREES.items()
        for name in imported(tree)
        if not is_downhill(room_of(module_name(path)), room_of(name))
        and (path.relative_to(SOURCE).as_posix(), name) not in SHORTCUTS
    ]
    assert not uphill, "\n".join(uphill)
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms == {*HILL, "zoo"} - {"errors"}
    # The walk would find nothing uphill if it saw nothing.
    assert "prunus.errors" in imported(TREES[SOURCE / "graph" / "plan.py"])
    assert not is_downhill("graph", "scoring") and not is_downhill("zoo", "graph") and is_downhill("scoring", "graph")


def test_public_names_are_sorted_complete_and_documented() -> None:
    names = list(prunus.__all__)
    assert sorted(names) == sorted(set(names)) == dir(prunus)  # ruff keeps the list itself in order
    imports = [node for node in ast.walk(TREES[SOURCE / "__init__.py"]) if isinstance(node, ast.ImportFrom)]
    declared = {alias.name for node in imports for alias in node.names}
    missing = set(names) - declared  # what type checkers see
    assert not missing
    homeless = [name for name in names if not _home(getattr(prunus, name)).startswith("prunus")]
    assert not homeless
    assert not [name for name in names if not (getattr(prunus, name).__doc__ or "").strip()]
    with pytest.raises(AttributeError, match="no attribute 'compres'") as caught:
        _ = prunus.compres
    assert (caught.value.name, caught.value.obj) == ("compres", prunus)  # Python guesses the name with these


def _home(value: object) -> str:
    return str(getattr(value, "__module__", None) or getattr(value, "__name__", ""))


# Files of others are read by a reader that builds plain data only; ours are never pickles.
UNSAFE = {"pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps", "torch.save"}
MACHINE = re.compile(
    r"(?<![\w.])/(work|tmp|root|home|mnt|Users)/|[A-Z]:\\\\|\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b"
    r"|registry\.npmjs|pypi\.org|files\.pythonhosted|npmmirror|artifactory|jfrog",
    re.IGNORECASE,
)


def test_no_file_speaks_of_a_machine() -> None:
    files = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    found = [
        f"{path.relative_to(SOURCE)}: {match[0]}"
        for path in files
        for match in MACHINE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_only_the_command_line_prints_nobody_pickles_and_no_default_is_mutable() -> None:
    wrong = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            where = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in UNSAFE or (called == "print" and room_of(module_name(path)) != "cli"):
                    wrong.append(f"{where} calls {called}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                defaults = [*node.args.defaults, *node.args.kw_defaults]
                if any(isinstance(default, ast.List | ast.Dict | ast.Set) for default in defaults):
                    wrong.append(f"{where} has a mutable default")
    assert not wrong, "\n".join(wrong)


def test_files_that_are_not_python_are_packaged() -> None:
    data = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    packaged = {path for pattern in data["prunus"] for path in SOURCE.glob(pattern)}
    files = {path for path in SOURCE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert not {str(path.relative_to(SOURCE)) for path in files - packaged}
    assert not [pattern for pattern in data["prunus"] if not any(SOURCE.glob(pattern))]


def exists(name: str) -> bool:
    """Whether `prunus.x.y` is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(value, part) and part not in getattr(value, "__annotations__", {}):
                return False
            value = getattr(value, part, None)
        return True
    return False


def test_names_and_files_in_the_docs_exist() -> None:
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        where = page.relative_to(PROJECT)
        paths = re.findall(r"`(src/prunus[\w/.\-]*)", text)
        wrong += [f"{where}: {path}" for path in paths if not (PROJECT / path).exists()]
        names = re.findall(r"`(prunus(?:\.\w+)+)", text)
        for module, imports in re.findall(r"^ *from (prunus[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
            names += [f"{module}.{name.split()[0]}" for name in imports.split(",")]
        wrong += [f"{where}: {name}" for name in dict.fromkeys(names) if not exists(name)]
    assert not wrong, "\n".join(wrong)
    assert exists("prunus.util.files.atomic") and not exists("prunus.util.files.nothing")
