"""Small things that a user meets: how to go on after Ctrl-C, tables of 80 columns, where the time went."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import save_file

from secateur.cli import prune
from secateur.cli.columns import columns
from secateur.cli.common import complaints, resumable
from secateur.zoo.models import create
from tests.cli.command_line import lines, secateur

ROOT = Path(__file__).parents[2]


def test_ctrl_c_says_how_to_continue(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(complaints, "print", lambda text, **_: said.append(text))
    with pytest.raises(SystemExit) as end, resumable("secateur prune --resume runs/a"):
        raise KeyboardInterrupt
    assert end.value.code == 130 and said == ["interrupted; to continue: secateur prune --resume runs/a"]


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("secateur.training.fit.fit", ("train", "lenet5", "--data", "digits")),
        (
            "secateur.studies.effectiveness_study.study.effectiveness",
            ("study", "effectiveness", "lenet5", "--data", "digits", "--weights", "w.safetensors"),
        ),
        (
            "secateur.studies.sensitivity_study.study.sensitivity",
            ("study", "sensitivity", "lenet5", "--data", "digits", "--weights", "w.safetensors"),
        ),
        ("secateur.studies.timing_study.timing.timing", ("study", "timing", "lenet5", "--data", "digits")),
    ],
    ids=lambda value: value.rpartition(".")[2] if isinstance(value, str) else " ".join(value[:2]),
)
def test_ctrl_c_in_long_verbs(
    work: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    save_file(create("lenet5").state_dict(), "w.safetensors")
    monkeypatch.setattr("sys.argv", ["secateur", *words])
    monkeypatch.setattr(work, _interrupt)
    found = secateur(*words, columns=200)
    assert found.exit_code == 130
    assert f"interrupted; to continue: secateur {' '.join(words)}" in found.stderr


def test_the_last_column_wraps() -> None:
    shown = columns(("a", "title"), [["x", "one two three four five six"]], width=24)
    assert shown.splitlines() == ["a  title", "x  one two three four", "   five six"]


@pytest.mark.parametrize("words", [("models",), ("reproduce",), ("data", "list")])
def test_lists_fit_80_columns(words: tuple[str, ...]) -> None:
    assert max(len(line) for line in lines(secateur(*words)) if not line.startswith("searched")) <= 80


def test_all_of_the_time_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(prune.console, "print", lambda text, **_: said.append(text))
    monkeypatch.setattr("secateur.running.summary.headline", lambda _summary: [["", "", "", ""]])
    summary: dict[str, Any] = {"seconds": {"score": 6.0, "repair": 6.2, "this_call": 58.2}, "notes": ["slower"]}
    prune.say(SimpleNamespace(summary=summary, rounds=(1,)), Path("runs/a"), Path("runs/a/report.html"))  # type: ignore[arg-type]
    assert "\n1 round in 58 s: score 6 s, repair 6 s, evaluation, timing and the rest 46 s" in said
    assert "note: slower" in said


def test_the_demo_installs_no_tools_of_development() -> None:
    text = (ROOT / "Makefile").read_text()
    rule = text[text.index(".venv/.demo:") : text.index("test: .venv/.ready")]
    assert "-e .\n" in rule and "[dev]" not in rule and "demo: .venv/.demo" in rule
