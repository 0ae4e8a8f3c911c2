"""The examples of the help and of the documents that need nothing but the built-in digits: they run."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path

import pytest

from prunus.cli import inputs as demo
from prunus.cli import prune
from tests.cli.command_line import lines, prunus
from tests.cli.test_documents import DOCUMENTS, commands
from tests.cli.test_help import VERBS

SHORTER = {"train": ["--epochs", "1", "--limit", "64"], "prune": ["--num-images", "64"]}  # the rest is as written
# In this order: a report needs the run of `prunus prune`, an evaluation needs the weights of `prunus train`.
RUNNABLE = [
    "prunus train lenet5 --data digits",
    "prunus evaluate lenet5 --data digits --weights runs/train-lenet5-digits/model.safetensors",
    "prunus train resnet8 --data digits",
    "prunus prune",
    "prunus report runs/prune-resnet8-digits",
    "prunus report runs/prune-resnet8-digits --out report.html",
    "prunus report runs/prune-resnet8-digits --out somewhere/else.html",
    "prunus prune runs/prune-resnet8-digits --target 0.3",
    "prunus compare runs/prune-resnet8-digits runs/prune-resnet8-digits-2",
    "prunus study structure lenet5 --widths 4,9,60,40",
    "prunus train resnet8 --data digits --size 16 --no-augment --epochs 20 --out resnet8-digits",
    "prunus show separation resnet8-digits --data digits --size 16 --layer layer2.0.conv1",
    "prunus reproduce",
]

MEASUREMENT = "prunus study effectiveness resnet8="  # it takes minutes, and is parsed by test_documents.py alone


def examples() -> set[str]:
    told = {line.strip() for command in VERBS.values() for line in inspect.cleandoc(command.help or "").splitlines()}
    return told | {command for path in DOCUMENTS for command in commands(path)}


def test_all_examples_on_digits_are_run() -> None:
    assert set(RUNNABLE) <= examples()
    on_digits = {example for example in examples() if example.startswith("prunus") and "digits" in example}
    assert {example for example in on_digits if not example.startswith(MEASUREMENT)} <= set(RUNNABLE)


def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "DEMO_EPOCHS", 1)
    monkeypatch.setattr(prune, "DEMO", {**prune.DEMO, "epochs": 1, "rounds": 1})
    for example in RUNNABLE:
        words = shlex.split(example)[1:]
        lines(prunus(*words, *SHORTER.get(words[0], [])))
    assert Path("runs/comparison/compare.html").exists() and Path("runs/comparison/compare.json").exists()
    assert Path("report.html").exists() and Path("somewhere/else.html").exists()
