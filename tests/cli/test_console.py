"""What all verbs share: how to go on after Ctrl-C, tables of 80 columns, where the time went."""

from __future__ import annotations

import errno
import os
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.torch import save_file

from prunus.cli.console import complaints, console, resumable, table
from prunus.errors import FileError
from prunus.util.files import atomic
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus

ROOT = Path(__file__).parents[2]


def test_ctrl_c_says_how_to_continue(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(complaints, "print", lambda text, **_: said.append(text))
    with pytest.raises(SystemExit) as end, resumable("prunus prune --resume runs/a"):
        raise KeyboardInterrupt
    assert end.value.code == 130 and said == ["interrupted; to continue: prunus prune --resume runs/a"]


def test_a_full_disk_says_how_to_continue(tmp_path: Path) -> None:
    with pytest.raises(FileError) as end, resumable("prunus prune --resume runs/a"), atomic(tmp_path / "plan.json"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    words = "plan.json cannot be written: No space left on device. Make room, then continue: prunus prune --resume"
    assert words in str(end.value)
    with pytest.raises(FileError) as end, resumable("prunus prune --resume runs/a"), atomic(tmp_path / "plan.json"):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    assert "continue" not in str(end.value)


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("work", "verb"),
    [
        ("prunus.train.fit.fit", ["train"]),
        ("prunus.studies.effectiveness_study.effectiveness", ["study", "effectiveness"]),
        ("prunus.studies.sensitivity_study.sensitivity", ["study", "sensitivity"]),
        ("prunus.studies.timing_study.timing", ["study", "timing"]),
    ],
)
def test_ctrl_c_in_long_verbs(work: str, verb: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(create("lenet5").state_dict(), "w.safetensors")
    words = [*verb, "lenet5", "--data", "digits", "--weights", "w.safetensors"]
    monkeypatch.setattr("sys.argv", ["prunus", *words])
    monkeypatch.setattr(work, _interrupt)
    found = prunus(*words, columns=200)
    assert found.exit_code == 130
    assert f"interrupted; to continue: prunus {' '.join(words)}" in found.stderr


def test_numbers_are_never_broken_and_words_are_if_they_must() -> None:
    shown = table(("a", "title", "n"), [["x", "one two three four five six", "12,345"]], numbers=("n",))
    written = StringIO()
    Console(width=24, file=written).print(shown)
    told = [line.rstrip() for line in written.getvalue().splitlines()]
    assert told == ["a  title               n", "x  one two three  12,345", "   four five six"]


def test_titles_of_numbers_are_broken_in_tables_that_are_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (["part", "weights removed"], [["layer1.0.conv1", "50.0"]], ["weights removed"])
    whole, broken = ["part            weights removed"], ["                weights", "part            removed"]
    for width, first in ((31, whole), (30, broken)):
        monkeypatch.setattr(console, "width", width)  # 31 = 14 + 2 + 15
        written = StringIO()
        Console(width=width, file=written).print(table(*row))
        assert [line.rstrip() for line in written.getvalue().splitlines()][:-1] == first


@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("reproduce",),
        ("data",),
        ("inspect", "resnet56"),
        ("inspect", "lenet5", "--data", "digits", "--scores", "all", "--num-images", "20"),
    ],
    ids=" ".join,
)
def test_lists_fit_80_columns(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [line for line in lines(prunus(*words)) if not line.startswith("searched")]
    assert max(len(line) for line in shown) <= 80
    assert not [line for line in shown if "…" in line]  # nothing is cut


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_loaded_networks_are_put_in_eval_mode(path: Path) -> None:
    loads = re.findall(r"^.*\b(?:sc|prunus)\.load\(.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert not [line for line in loads if ").eval()" not in line]
    assert loads or path.name != "README.md"
