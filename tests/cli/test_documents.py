"""The documents keep up with the code: commands in them can be typed, modules and files that they name exist."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from prunus.cli.reproduce import check

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"^ {4,}(?:torchrun --nproc-per-node 2 -m )?(prunus [a-z].*)$", re.MULTILINE)


def commands(path: Path) -> list[str]:
    """Command lines in indented blocks, continued lines joined and comments left out."""
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    return [found.partition("  #")[0].strip() for found in COMMAND.findall(text)]


def test_commands_are_found_and_a_wrong_option_would_be() -> None:
    assert sum(len(commands(path)) for path in DOCUMENTS) >= 50
    for wrong in (["study", "timing", "vgg16", "--clok", "cpu"], ["train", "--data", "digits"], ["prune", "a", "b"]):
        with pytest.raises(Exception, match=r"(?i)no such option|missing|unexpected extra"):
            check(wrong)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_can_be_parsed(path: Path) -> None:
    for command in commands(path):
        words = shlex.split(command)
        if words[1] != "VERB" and "NAME" not in words[1:3]:
            check(words[1:])  # the real parser, which raises for what cannot be typed


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    modules = re.findall(r"`(prunus(?:\.[a-z_0-9]+)+)", text)
    missing = [name for name in modules if not _is_module_or_name(name)]
    files = re.findall(r"`((?:src|tests|docs|benchmarks|examples)/[\w/.-]+)`", text)
    missing += [name for name in files if not (ROOT / name).exists()]
    links = re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", text)
    missing += [name for name in links if not (path.parent / name).exists()]
    assert not missing


def _is_module_or_name(name: str) -> bool:
    """A module, or a name in one."""
    package, _, attribute = name.rpartition(".")
    try:
        return find_spec(name) is not None or hasattr(import_module(package), attribute)
    except ModuleNotFoundError:  # the parent is a module without submodules, or does not exist
        return find_spec(package.rpartition(".")[0]) is not None and hasattr(import_module(package), attribute)
