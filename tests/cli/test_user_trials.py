"""What users tried, and what met them with a traceback or with silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus

OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, fault, num_classes):
        super().__init__()
        self.conv, self.fc, self.fault = nn.Conv2d(1, 6, 3), nn.Linear(6, num_classes), fault
    def forward(self, x):
        if self.fault == "forward":
            raise KeyError("oops")
        return self.fc(self.conv(x).mean((2, 3)))

def good(num_classes=10): return Net("", num_classes)
def stumbles(num_classes=10): return Net("forward", num_classes)
def raises(num_classes=10): raise ValueError("boom")
def needs(path, num_classes=10): return Net("", num_classes)
def rgb(num_classes=10): return Net("", num_classes)
def linear(num_classes=10): return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
for factory in (good, stumbles, raises, linear):
    factory.shape = (1, 8, 8)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trial_nets.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "trial_nets", raising=False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evaluate lenet5 --data digits --size 5", "lenet5 does not run on an image of 1 x 5 x 5: RuntimeError"),
        ("evaluate trial_nets:stumbles --data digits", "does not run on an image of 1 x 8 x 8: KeyError: 'oops'"),
        ("train trial_nets:stumbles --data digits", "trial_nets.py:10)"),
        ("bench trial_nets:stumbles", "does not run on an image of 1 x 8 x 8"),
        ("inspect trial_nets:needs", "missing a required argument: 'path'. Give its parameters defaults"),
        ("inspect trial_nets:rgb", "trial_nets.py:11). What it takes can be said: factory.shape = (channels, height"),
        ("evaluate lenet5=", "lenet5=: expected NAME=WEIGHTS, as in resnet56=resnet56.safetensors"),
        (
            "train lenet5 --data digits --teacher lenet5",
            "the teacher lenet5 would be untrained: pass --t",
        ),
        ("prune lenet5=w.safetensors --mean 1,2", "mean must be one finite number, got [1.0, 2.0]"),
        ("prune lenet5=w.safetensors --holdout none", "test (359). Hold some out: --holdout train:0.1"),
        ("inspect trial_nets:raises", "'trial_nets:raises' failed with ValueError: boom"),
        ("evaluate trial_nets:rgb --data digits", "is for images of 3 channels, and these have 1: set rgb.shape ="),
        ("score trial_nets:linear --data digits", "there is nothing to score"),
        ("evaluate lenet5 --data digits --size 1000000", "there is not enough memory: "),
        ("inspect lenet5 --classes 1000000000000", "there is not enough memory: "),
        ("bench lenet5 --threads 100000", "threads must be at least 1 and at most "),
        ("train lenet5 --data digits --teacher-weights w.safetensors", "--teacher-weights needs --teacher MODEL"),
        ("train resnet8 --data digits --limit 1 --size 1", "a batch norm cannot be trained on a single image"),
        ("reproduce fig1-lenet5-mnist --set =3", "--set takes KEY=VALUE"),
        ("data get cifar10 --from trial_nets.py --to new", "trial_nets.py: is not a complete tar archive (ReadError: "),
    ],
)
def test_one_line_that_says_what_is_wrong(line: str, words: str) -> None:
    save_file(create("lenet5").state_dict(), "w.safetensors")
    found = prunus(*line.split(), columns=500)
    assert found.exit_code == 1
    (said,) = [text for text in found.stderr.splitlines() if text.startswith("error: ")]
    assert words in said


def test_an_empty_name() -> None:
    found = prunus("evaluate", "", "--data", "digits")
    assert found.exit_code == 1 and found.stderr == "error: the name of the network is empty\n"


def test_outputs_that_are_not_finite_are_told() -> None:
    save_file(
        {name: torch.full_like(t, torch.nan) for name, t in create("lenet5").state_dict().items()}, "w.safetensors"
    )
    found = prunus("evaluate", "lenet5", "--data", "digits", "--weights", "w.safetensors", "--json", columns=200)
    assert "warning: the network's outputs are NaN or infinite" in found.stderr
    assert json.loads("\n".join(lines(found)), parse_constant=pytest.fail)["loss"] is None


def test_brackets_in_names_are_printed_as_they_are() -> None:
    words = (
        "prune",
        "trial_nets:good",
        "--data",
        "digits",
        "--ratio",
        "0.3",
        "--epochs",
        "0",
        "--out",
        "a [red] b [/]",
    )
    found = lines(prunus(*words, columns=200))
    assert "results in a [red] b [/]: model.safetensors, plan.json, summary.json" in found
    assert load_file("a [red] b [/]/model.safetensors")
