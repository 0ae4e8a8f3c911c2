"""The rules of the house, checked on the source itself: imports run downhill, public names are in order, and no file
of the package speaks of the machine that it was written on."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import prunus

SOURCE = Path(prunus.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each room may import the rooms before it (and itself): imports run downhill.
ROOMS = "errors base channels measuring scoring pictures repairing deciding training running shipping studies"
HILL = [*ROOMS.split(), "report", "cli"]
ZOO_GUESTS = {"running", "studies", "cli", "shipping", "report"}  # rooms that may import the zoo


def room_of(module: str) -> str:
    """`prunus.graph.plan` -> `channels`; the package itself has no room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_name(path: Path) -> str:
    parts = ["prunus", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Modules of prunus that a file imports, at its top or inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                climbed = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*climbed, base] if base else climbed)
            found.add(base)
            if base == "prunus":
                found |= {f"prunus.{alias.name}" for alias in node.names}
    return {name for name in found if name == "prunus" or name.startswith("prunus.")}


def is_downhill(importer: str, target: str) -> bool:
    if importer in ("", target) or target == "errors":
        return True
    if target == "zoo":
        return importer in ZOO_GUESTS
    if importer == "zoo":
        return target == "base"
    if target not in HILL:
        return target == "" and importer in ("cli", "report", "studies", "__main__")
    return importer == "__main__" or HILL.index(target) < HILL.index(importer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_downhill(path: Path) -> None:
    importer = room_of(module_name(path))
    uphill = [name for name in sorted(imported(path)) if not is_downhill(importer, room_of(name))]
    assert not uphill, f"{path.relative_to(SOURCE)} imports {', '.join(uphill)}"


def test_the_walk_sees_imports() -> None:
    """The check above would pass on anything if it saw nothing."""
    assert "prunus.errors" in imported(SOURCE / "channels" / "plan.py")
    assert not is_downhill("channels", "scoring")
    assert not is_downhill("zoo", "channels")
    assert is_downhill("scoring", "channels")


def test_every_room_is_on_the_plan() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= {*HILL, "zoo"}


def test_public_names_are_sorted_and_complete() -> None:
    names = list(prunus.__all__)
    assert sorted(names) == sorted(set(names)) == dir(prunus)  # ruff keeps the list itself in order
    tree = ast.parse(Path(prunus.__file__).read_text(encoding="utf-8"))
    declared = [a.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names]
    assert set(names) == set(declared) - {"import_module", "TYPE_CHECKING", "Any"}  # what type checkers see
    for name in names:
        found = getattr(prunus, name)
        assert (
            found.__name__ in ("prunus.graph.rules", "prunus.studies")
            if name in ("rules", "studies")
            else found.__module__.startswith("prunus")
        )
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = prunus.nothing
    with pytest.raises(AttributeError) as caught:
        _ = prunus.compres
    assert (caught.value.name, caught.value.obj) == ("compres", prunus)  # Python guesses the name with these


def test_public_names_have_docstrings() -> None:
    bare = [name for name in prunus.__all__ if not (getattr(prunus, name).__doc__ or "").strip()]
    assert not bare


# Files of others are read by a reader that builds plain data only; our own are never pickles.
UNSAFE = {"pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps", "torch.save"}
MACHINE = re.compile(r"(?<![\w.])/(work|tmp|root|home|mnt|Users)/|[A-Z]:\\\\|localhost|\b(?:\d{1,3}\.){3}\d{1,3}\b")
REGISTRY = re.compile(r"registry\.npmjs|pypi\.org|files\.pythonhosted|npmmirror|artifactory|jfrog", re.IGNORECASE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_speaks_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "live_server.py":  # it serves whatever machine it runs on, and no other
        text = text.replace("127.0.0.1", "").replace('"localhost"', "")
    assert not MACHINE.search(text), MACHINE.search(text)
    assert not REGISTRY.search(text), REGISTRY.search(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_command_line_prints_and_nobody_pickles(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert "print" not in calls or room_of(module_name(path)) == "cli"
    assert not {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} & UNSAFE


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_mutable_defaults(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    defaults = [d for f in functions for d in [*f.args.defaults, *f.args.kw_defaults] if d is not None]
    assert not [d.lineno for d in defaults if isinstance(d, (ast.List, ast.Dict, ast.Set))]


# Sizes that keep the code readable. A verb of the command line may be longer: it parses, calls and prints.
LONGEST_FUNCTION, USUAL_FUNCTION, MOST_PARAMETERS, LONGEST_FILE = 60, 20, 10, 300


def functions() -> list[tuple[str, int, int]]:
    """(where, lines, parameters) of every function outside the command line."""
    found = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and room_of(module_name(path)) != "cli":
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                own = sum(argument.arg not in ("self", "cls") for argument in given)
                starred = sum(argument is not None for argument in (node.args.vararg, node.args.kwarg))
                assert node.end_lineno is not None
                where = f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
                found.append((where, node.end_lineno - node.lineno + 1, own + starred))
    return found


def test_functions_and_files_are_short() -> None:
    found = functions()
    assert not [where for where, lines, _ in found if lines > LONGEST_FUNCTION]
    assert not [where for where, _, parameters in found if parameters > MOST_PARAMETERS]
    lengths = sorted(lines for _, lines, _ in found)
    assert lengths[int(0.9 * len(lengths))] <= USUAL_FUNCTION
    assert not [p for p in FILES if len(p.read_text(encoding="utf-8").splitlines()) > LONGEST_FILE]
