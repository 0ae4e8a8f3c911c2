"""The user's own `evaluate` and `fit`: the first decides everywhere, the second is told what it must return."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from prunus.errors import DecideError, RunError
from prunus.tasks.evaluate import Evaluation
from tests.run.toys import run


def full_conv1(model: nn.Module, loader: Any) -> Evaluation:
    """A quality that only suffers when conv1 loses outputs: zeroed weights count as removed."""
    rows = model.conv2.weight.abs().sum((0, 2, 3))
    return Evaluation(float((rows > 0).sum()) / 24, 1.0, 120)


def test_own_evaluation_ranks_the_units(tmp_path: Path) -> None:
    result = run(tmp_path, evaluate=full_conv1, epochs=0, rounds=1, target=0.05, k=1, alpha=1.0)
    found = json.loads((tmp_path / "round-01" / "sensitivity.json").read_text())
    assert found["measure"] == "full_conv1" and found["base_value"] == 1.0
    tried = found["tried"]
    assert tried["conv1:out"]["value"] == pytest.approx(1 - tried["conv1:out"]["channels"] / 24)
    assert all(row["value"] == 1.0 for name, row in tried.items() if name != "conv1:out")
    assert not result.plan.removed()["conv1:out"]


def test_own_loss_ranks_the_units(tmp_path: Path) -> None:
    def judge(model: nn.Module, loader: Any) -> Evaluation:
        return Evaluation(0.9, 3.0 - full_conv1(model, loader).quality, 120)

    run(tmp_path, evaluate=judge, measure="loss", epochs=0, rounds=1, target=0.05, k=1)
    found = json.loads((tmp_path / "round-01" / "sensitivity.json").read_text())
    assert found["base_value"] == pytest.approx(-2.0)


def test_nan_decides_nothing() -> None:
    with pytest.raises(DecideError, match="your measure returned NaN for the whole network"):
        run(measure=lambda model, holdout: math.nan, epochs=0)
    with pytest.raises(DecideError, match="your measure must return a number, but returned str"):
        run(measure=lambda model, holdout: "good", epochs=0)
    with pytest.raises(RunError, match="the evaluation returned NaN"):
        run(evaluate=lambda model, loader: Evaluation(math.nan, 1.0, 120), epochs=0)


def test_own_retraining_must_return_the_network() -> None:
    with pytest.raises(RunError, match=r"must return the retrained network, but returned None; .*`return model`"):
        run(fit=lambda model, train, holdout: None)
    with pytest.raises(RunError, match="but returned a dict"):
        run(fit=lambda model, train, holdout: {"model": model})
    with pytest.raises(RunError, match=r"weight is \[2, 2\] in the network that it returned, and missing in"):
        run(fit=lambda model, train, holdout: nn.Linear(2, 2))


@pytest.mark.parametrize("target", ["0.5", True])
def test_a_goal_must_be_a_number(target: Any) -> None:
    with pytest.raises(DecideError, match="target must be above 0 and below 1, got " + repr(target)):
        run(target=target)
