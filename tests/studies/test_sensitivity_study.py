"""Two ways of choosing layers from one start: all points there, equal steps, and nothing computed twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunus as pr
from prunus.errors import DecideError, RunError
from prunus.studies import read_study
from prunus.studies import sensitivity_study as arms
from prunus.studies.sensitivity_study import ratio_for
from tests.cli.command_line import lines, prunus
from tests.proof import assert_accuracy
from tests.run.toys import HOLDOUT, TEST, TRAIN, trained

QUICK: dict[str, Any] = {"start": 0.2, "end": 0.5, "iterations": 2, "epochs": 1, "lr": 0.02, "k": 2}
ROUNDED = 1e-5  # accuracies of a study are points, rounded to three places


def compared(folder: Path, **words: Any) -> list[dict[str, Any]]:
    return pr.studies.sensitivity(trained(), TRAIN, HOLDOUT, folder, **{"test": TEST, **QUICK, **words})


def macs(model: nn.Module) -> int:
    """By hand: weights x positions of Small's layers."""
    layers = dict(model.named_modules())
    positions = {"stem": 36, "conv1": 36, "conv2": 36, "wide": 16, "fc": 1}
    return sum(int(torch.numel(layers[name].weight)) * count for name, count in positions.items())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("sensitivity") / "s"
    return folder, compared(folder)


def test_both_arms_have_all_points_and_one_start(study: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = study
    assert [(row["method"], row["iteration"]) for row in rows] == [(m, i) for m in ("flops", "ratio") for i in range(3)]
    flops, ratio = rows[:3], rows[3:]
    assert {**flops[0], "method": ""} == {**ratio[0], "method": ""}
    start = pr.load(folder / "start", trained())
    assert flops[0]["macs_removed"] == pytest.approx(1 - macs(start) / macs(trained()), abs=1e-6)
    assert flops[0]["macs_removed"] == pytest.approx(0.2, abs=0.02)
    assert_accuracy(flops[0]["test"] / 100, start, TEST, printed=ROUNDED)
    for arm in (flops, ratio):  # equal steps to the same end
        assert arm[1]["macs_removed"] == pytest.approx((flops[0]["macs_removed"] + 0.5) / 2, abs=0.03)
        assert arm[2]["macs_removed"] == pytest.approx(0.5, abs=0.02)
        assert all(row["units"] > 0 and row["channels"] > 0 for row in arm[1:])
    for row in flops[1:]:  # as in the rounds of the arm's own run
        words = json.loads((folder / "flops" / f"round-0{row['iteration']}" / "sensitivity.json").read_text())
        assert row["alpha"] == words["alpha"] != 3.0
    assert "alpha" not in read_study(folder)["asked"] and {row.get("alpha") for row in ratio} == {None}


def test_figures_are_those_of_the_networks_in_the_folder(study: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, rows = study
    for method, last in (("flops", rows[2]), ("ratio", rows[5])):
        network = pr.load(folder / method, trained())  # plans of pruned networks count from the original
        assert last["macs_removed"] == pytest.approx(1 - macs(network) / macs(trained()), abs=1e-6)
        assert_accuracy(last["test"] / 100, network, TEST, printed=ROUNDED)
        assert_accuracy(last["holdout"] / 100, network, HOLDOUT, printed=ROUNDED)
    found = read_study(folder)
    assert found["rows"] == rows
    unpruned = re.search(r"Unpruned: ([\d.]+)% test accuracy", found["notes"][0])
    assert unpruned is not None
    assert_accuracy(float(unpruned[1]) / 100, trained(), TEST, printed=1e-4)
    svg = (folder / "curves.svg").read_text()
    assert ">MACs removed (%)</text>" in svg and ">Li et al., test</text>" in svg


def test_a_stopped_study_goes_on_and_ends_the_same(
    study: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    compress = arms.compress

    def stopping(*words: Any, **named: Any) -> Any:
        calls.append(named["folder"].name)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return compress(*words, **named)

    monkeypatch.setattr(arms, "compress", stopping)
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "s")
    assert calls == ["start", "flops", "ratio"]
    assert compared(tmp_path / "s") == study[1]
    assert calls[3:] == ["start", "ratio"]  # the start is read from its folder, and the first arm is finished
    with pytest.raises(RunError, match="epochs was 1 there and is 2 now"):
        compared(tmp_path / "s", epochs=2)


def test_a_finished_run_can_be_the_start_and_the_last_iteration_may_train_longer(
    study: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    rows = compared(tmp_path / "s", start=study[0] / "start", test=None, epochs=0, last_epochs=1)
    assert [row["macs_removed"] for row in rows[::3]] == [study[1][0]["macs_removed"]] * 2
    assert rows[0]["holdout"] == study[1][0]["holdout"] and rows[0]["test"] is None
    assert all(row["cut"] == row["holdout"] for row in rows if row["iteration"] < 2)  # nothing is retrained
    assert "held-out accuracy" in read_study(tmp_path / "s")["notes"][0]
    for arm in ("flops", "ratio"):
        rounds = [json.loads((tmp_path / "s" / arm / f"round-0{n}" / "round.json").read_text()) for n in (1, 2)]
        assert [len(each["retraining"]) for each in rounds] == [0, 1]
    with pytest.raises(DecideError, match=r"has already lost .*; end must be above that"):
        compared(tmp_path / "late", start=study[0] / "start", end=0.1)


def test_the_start_is_the_nearest_uniform_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "STEP", 0.02)
    graph = pr.trace(trained(), TEST[0][0][:1])
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    ratio = ratio_for(graph, inner, 0.4)
    assert graph.cost(pr.uniform(graph, pr.score(graph, None, "l2"), ratio, units=inner)).macs == pytest.approx(
        0.6 * graph.macs, rel=0.05
    )
    with pytest.raises(DecideError, match=r"no uniform ratio of the inner units removes 99\.0%"):
        ratio_for(graph, inner, 0.99)


def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    for words, message in (
        ({"start": 0.6}, "0 < start < end < 1"),
        ({"iterations": 0}, "at least 1"),
        ({"target": 0.5}, "leave target out"),
        ({"speedup": 1.5}, "leave speedup out"),
        ({"max_memory": 1000}, "leave max_memory out"),
        ({"epoch": 1}, "no setting called 'epoch': did you mean epochs"),
    ):
        with pytest.raises(DecideError, match=message):
            compared(tmp_path, **words)
    assert not list(tmp_path.iterdir())


def test_on_digits(lenet_run: Path, tmp_path: Path) -> None:
    weights = lenet_run.parent / "base" / "model.safetensors"
    words = ["--num-images", "150", "--epochs", "0", "--iterations", "1", "--start", "0.2", "--end", "0.5"]
    command = ["study", "sensitivity", f"lenet5={weights}", "--data", "digits", "--device", "cpu", *words]
    said = lines(prunus(*command, "--no-augment", "--out", tmp_path / "s"))
    assert said[0].split() == ["method", "iteration", "MACs", "removed", "before", "repair", "held-out", "test"]
    assert [line.split()[:2] for line in said[1:5]] == [[m, str(i)] for m in ("flops", "ratio") for i in range(2)]
    assert (tmp_path / "s" / "report.html").exists() and len(read_study(tmp_path / "s")["rows"]) == 4
