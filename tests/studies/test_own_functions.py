"""Metrics, splits and costs of one's own as `module:function`, in every verb that takes one by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import lines, prunus

OWN = """
def last_first(channels, power=1.0):
    n = channels.moments.mean.shape[1]
    return [float(n - i) ** power for i in range(n)]  # the last channels are worth the least


def half_of_each(task):
    import prunus

    units = task.graph.units
    return prunus.Plan.of(task.graph, {name: range(units[name].width // 2) for name in task.names})


def no_plan(task):
    return {}


def channels_left(graph):
    return lambda keep: sum(len(keep.get(name, range(unit.width))) for name, unit in graph.units.items())


def no_number(graph):
    return graph.cost
"""


@pytest.fixture
def weights(lenet_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained LeNet-5, with own.py in the current folder."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lenet_run.parent / "base" / "model.safetensors"


def kept_by(run: Path) -> dict[str, list[int]]:
    plan = json.loads((run / "plan.json").read_text())
    return {name: unit["keep"] for name, unit in plan["units"].items()}


def test_a_metric_in_verbs_and_studies(weights: Path, tmp_path: Path) -> None:
    """lenet5: 6 channels in conv1, of which the first are kept."""
    network, data = ["lenet5", "--weights", weights], ["--data", "digits", "--device", "cpu"]
    metric = "own:last_first:power=2"
    scores = lines(prunus("inspect", *network, *data, "--scores", metric, "--num-images", "100", columns=200))
    assert any("36" in line and "conv1:out" in line for line in scores)  # 6 squared
    words = ["--metric", metric, "--num-images", "100"]
    lines(prunus("inspect", *network, *data, "--sensitivity", *words, "--num-eval-images", "50"))
    words += ["--target", "0.3", "--split", "uniform", "--repair", "none", "--no-timing", "--out", "run"]
    lines(prunus("prune", *network, *data, *words))
    kept = kept_by(tmp_path / "run")["conv1:out"]
    assert kept == list(range(len(kept))) and len(kept) < 6
    asked = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert asked["metric"] == metric
    words = ["--num-images", "100", "--out"]
    lines(prunus("show", "channels", *network, *data, "--by", metric, "--metrics", f"l1,{metric}", *words, "channels"))
    words = ["--metrics", "gsd,own:last_first", "--num-images", "100"]
    lines(prunus("study", "timing", *network, *data, *words, "--out", "timing"))
    words += ["--ratios", "0.5", "--num-eval-images", "50"]
    said = lines(prunus("study", "effectiveness", f"lenet5={weights}", *data, *words, "--out", "effectiveness"))
    assert said[3].split()[1] == "own:last_first"


def test_a_split_and_a_cost(weights: Path, tmp_path: Path) -> None:
    network, data = ["lenet5", "--weights", weights], ["--data", "digits", "--device", "cpu", "--no-timing"]
    words = ["--target", "0.4", "--metric", "l1", "--repair", "none", "--rounds", "1", "--split"]
    lines(prunus("prune", *network, *data, *words, "own:half_of_each", "--out", "halved"))
    kept = kept_by(tmp_path / "halved")
    assert kept["conv1:out"] == [0, 1, 2] and kept["conv2:out"] == list(range(8))
    wrong = prunus("prune", *network, *data, *words, "own:no_plan", "--out", "wrong")
    assert wrong.exit_code == 1 and "your split no_plan must return a prunus.Plan, and returned dict" in wrong.stderr
    words = ["inspect", *network, *data[:4], "--sensitivity", "--num-images", "100", "--cost"]
    said = lines(prunus(*words, "own:channels_left", columns=200))
    assert "channels_left saved" in said[0]
    assert {line.split()[2] for line in said[1:3]} == {"3"}  # alpha 3 of a cost that is 1 for each channel
    wrong = prunus(*words, "own:no_number")
    assert wrong.exit_code == 1 and "your cost cost must return a finite number" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--metric", "own:nothing"], "'own:nothing': the module own has no callable 'nothing'"),
        (["--metric", "own:last_first:powr=2"], "last_first has no option 'powr' (did you mean power?)"),
        (["--split", "own:nothing"], "'own:nothing': the module own has no callable 'nothing'"),
        (["--set", "cost=own:nothing", "--split", "algorithm1"], "'own:nothing': the module own has no callable"),
    ],
)
def test_what_is_not_there_is_said_at_once(weights: Path, words: list[str], complaint: str) -> None:
    result = prunus("prune", "lenet5", "--weights", weights, "--data", "digits", "--target", "0.3", *words)
    assert result.exit_code == 1 and complaint in result.stderr
