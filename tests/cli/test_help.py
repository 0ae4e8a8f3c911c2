"""What `--help` promises: every verb has examples, they can be parsed, and those on digits run."""

from __future__ import annotations

import inspect
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import prunus as sc
from prunus.cli import build
from prunus.cli.reproduce import check
from tests.cli.command_line import lines, prunus
from tests.processes import python


def verbs(command: typer.core.TyperGroup, *path: str) -> Iterator[tuple[tuple[str, ...], typer.core.TyperCommand]]:
    for name, inner in command.commands.items():
        if isinstance(inner, typer.core.TyperGroup):
            yield from verbs(inner, *path, name)
        else:
            assert isinstance(inner, typer.core.TyperCommand)
            yield (*path, name), inner


WHOLE = get_command(build())
assert isinstance(WHOLE, typer.core.TyperGroup)
VERBS = dict(verbs(WHOLE))


def test_all_verbs_are_looked_at() -> None:
    assert len(VERBS) >= 20 and ("data", "get") in VERBS and ("study", "timing") in VERBS


def test_the_version_is_that_of_the_project() -> None:
    written = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    assert lines(prunus("--version")) == [f"prunus {written}"]
    assert sc.__version__ == written


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_examples_are_there_and_could_be_typed(verb: tuple[str, ...]) -> None:
    command = VERBS[verb]
    start = " ".join(["prunus", *verb])
    told = inspect.cleandoc(command.help or "").splitlines()
    examples = [line.strip() for line in told if line.strip().startswith(start)]
    assert examples, f"{start} --help has no example"
    for example in examples:
        check(shlex.split(example)[1:])  # the real parser, which would exit with code 2
    shown = lines(prunus(*verb, "--help"))
    assert max(map(len, shown)) <= 80
    assert set(examples) <= {line.strip() for line in shown}  # each whole, on one line: it can be copied


def test_help_needs_neither_torch_nor_numpy() -> None:
    """Importing them takes seconds, and nobody wants to wait for `--help`."""
    listed = "[name for name in ('torch', 'numpy') if name in sys.modules]"
    assert python("-c", f"import sys; from prunus.cli import build; build(); print({listed})") == "[]\n"
