"""`--json`: the result of every verb as one JSON object on stdout, and nothing else there; exit codes."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from safetensors.torch import save_file

from prunus.zoo.models import create
from tests.cli.command_line import prunus

LOUD = """
from torch import nn

def net(num_classes=10):
    print("a factory that prints")
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, num_classes))
net.shape = (1, 8, 8)
"""
TARGET = "prune loud:net --data digits --target 0.2 --no-timing --num-images 64 --set num_repair_images=64"
# Commands in this order: some read what others wrote. Each with keys of its answer.
COMMANDS = {
    f"{TARGET} --out run": ["reached", "folder", "report", "before", "after", "seconds"],
    f"{TARGET} --out other --metric l1": ["reached"],
    "report run": ["page", "finished"],
    "report run other --out both": ["page", "runs"],
    "check run": ["macs", "problems", "reach"],
    "inspect": ["models"],
    "inspect run": ["layers", "units"],
    "inspect run --scores l1": ["scores"],
    "inspect run --sensitivity --metric l1": ["tried"],
    "inspect run --latency --engine eager": ["layers"],
    "evaluate run": ["quality", "loss"],
    "train loud:net --data digits --epochs 1 --out trained": ["weights", "holdout", "test"],
    "export run small.safetensors": ["path", "bytes", "error"],
    "bench run --engine eager --rounds 2 --batch 1": ["rows"],
    "show separation run --points 20 --each 2 --out pictures": ["files"],
    "data": ["data_sets", "searched"],
    "study structure run --out structure": ["rows", "folder"],
    "study table --model resnet56 --data cifar10": ["rows", "notes"],
    "study timing lenet5=w.safetensors --data digits --num-images 20 --metrics l1 --out timing": ["rows"],
    "study effectiveness lenet5=w.safetensors --data digits --ratios 0.5 --metrics l1 --num-eval-images 40": ["rows"],
    "study sensitivity lenet5=w.safetensors --data digits --epochs 0 --end 0.5 --iterations 1 --num-eval-images 40": [
        "rows"
    ],
    "reproduce": ["recipes"],
    "reproduce fig1-lenet5-mnist --budget smoke --dry-run": ["commands"],
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Command -> exit code, stdout, stderr."""
    place = tmp_path_factory.mktemp("json")
    (place / "loud.py").write_text(LOUD)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(str(place))
        save_file(create("lenet5").state_dict(), "w.safetensors")
        ran = {line: prunus(*line.split(), "--json") for line in COMMANDS}
        patch.delitem(sys.modules, "loud")
    return {line: (result.exit_code, result.stdout, result.stderr) for line, result in ran.items()}


@pytest.mark.parametrize("line", COMMANDS)
def test_one_object_and_nothing_else(line: str, answers: dict[str, tuple[int, str, str]]) -> None:
    code, stdout, stderr = answers[line]
    answer: dict[str, Any] = json.loads(stdout, parse_constant=pytest.fail)
    assert set(COMMANDS[line]) <= set(answer)
    assert code == (1 if answer.get("problems") else 0 if answer.get("reached", True) else 3)
    assert not line.startswith("train") or "epoch 1/1" in stderr
    assert not line.startswith(TARGET) or "a factory that prints" in stderr


def test_an_error_leaves_stdout_empty() -> None:
    found = prunus("evaluate", "lenett5", "--json")
    assert (found.exit_code, found.stdout) == (1, "") and "did you mean lenet5" in found.stderr
