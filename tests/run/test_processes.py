"""Two processes under torchrun plan as one does, and a run that is killed again and again ends with the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_model

import prunus as pr
from prunus.graph.plan import Plan
from prunus.scoring.scores import Scores, load_scores
from prunus.train.fit import fit
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import prunus
from tests.processes import python, torchrun
from tests.proof import assert_accuracy, counted_macs
from tests.run.test_speed_check import table
from tests.run.toys import TRAIN, trained
from tests.run.two_processes import CASES, TABLE, WEIGHTS, prune


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written."""
    folder = tmp_path_factory.mktemp("two")
    save_model(trained(), str(folder / WEIGHTS))
    table(pr.trace(trained(), TRAIN[0][0][:1])).save(folder / TABLE)
    torchrun("tests.run.two_processes", folder)
    return folder


def test_two_processes_train_one_network(folder: Path) -> None:
    first, second = (json.loads((folder / f"fit-{rank}.json").read_text()) for rank in (0, 1))
    for name, one in first.items():
        assert one["digest"] == second[name]["digest"]  # weights and batch-norm statistics, bit for bit
        assert one["quality"] == second[name]["quality"] and one["quality"]["num_images"] == 24
        low, high = one["bounds"]  # with room for rounding: each process evaluates its share
        assert low <= one["quality"]["quality"] <= high
        assert one["quality"]["loss"] == pytest.approx(one["loss"], rel=1e-5)
        # written by one process, once
        assert len((folder / f"fit-{name}" / "metrics.jsonl").read_text().splitlines()) == 1


def test_two_processes_plan_as_one_does(folder: Path, tmp_path: Path) -> None:
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert both[0] == both[1] and set(both[0]) == {*CASES, "speed"}
    summary = json.loads((folder / "speed" / "summary.json").read_text())
    time, timed = summary["time"], summary["speeds"][0]  # by the first process, for both
    assert time["asked"] == 1.3 <= max(check["predicted"] for check in time["checks"])
    assert (timed["engine"], timed["batch"]) == (time["engine"], time["batch"]) and timed["ratio"] > 0
    for name, words in CASES.items():
        _, plan = prune(folder / WEIGHTS, tmp_path / name, 0, 1, **words)
        one, two = Plan.from_json(plan), Plan.from_json(both[0][name][1])
        (scores,) = load_scores(tmp_path / name / "round-01").values()
        assert_same_plan(one, two, scores)
        assert any(one.removed().values())
    for name in ("exact", "race"):
        first, second = (
            json.loads((f / name / "round-01" / "sensitivity.json").read_text()) for f in (tmp_path, folder)
        )
        assert first["tried"].keys() == second["tried"].keys()
        for unit, row in first["tried"].items():
            assert row["value"] == pytest.approx(second["tried"][unit]["value"], rel=1e-5)
            assert row["num_images"] == second["tried"][unit]["num_images"]


def assert_same_plan(one: Plan, two: Plan, scores: Scores) -> None:
    """The same number of channels of every unit, and the same ones but for scores equal up to the rounding of sums.

    Scores are sums over all images, here half of them in each process; Gram matrices in float32 agree to about 1e-6.
    """
    assert one.removed() == two.removed()
    for unit in one.keep:
        values = scores.values[unit]
        swapped = sorted(set(one.keep[unit]) ^ set(two.keep[unit]))
        assert not swapped or np.ptp(values[swapped]) <= 1e-5 * np.abs(values).max(), unit


def assert_same_training(one: Path, two: Path) -> None:
    """Two rounds that tried the same rates to the same effect, and whose epochs had the same losses."""
    rates = [json.loads((folder / "rate.json").read_text()) for folder in (one, two)]
    assert rates[0]["lr"] == rates[1]["lr"]
    for first, second in zip(rates[0]["tries"], rates[1]["tries"], strict=True):
        assert first["quality"] == pytest.approx(second["quality"], abs=0.03)  # of 144 images
    epochs = [json.loads((folder / "round.json").read_text())["retraining"] for folder in (one, two)]
    assert epochs[0][0]["loss"] == pytest.approx(epochs[1][0]["loss"], rel=1e-3)  # sums are rounded differently


def test_the_whole_command_in_two_processes(tmp_path: Path) -> None:
    """LeNet-5 on the digits: half of its MACs gone in two rounds, and at most a point of accuracy on test images.

    Two processes try the same rates, augment the same images alike, and so plan and train as one process does.
    """
    torch.manual_seed(0)
    images = load("digits", size=32)
    loader = images.loader("train", 32, shuffle=True, seed=0)
    fitted = fit(create("lenet5"), loader, images.loader("test", 256), preset="cosine", epochs=4, lr=0.05)
    save_model(fitted.model, str(tmp_path / WEIGHTS))
    goal = ["--target", "0.5", "--round-to", "1", "--rounds", "2", "--epochs", "3", "--device", "cpu", "--no-timing"]
    command = ["prunus", "prune", "lenet5", "--weights", tmp_path / WEIGHTS, "--data", "digits", *goal]
    out = tmp_path / "run"
    torchrun(*command, "--out", out)
    assert prunus(*command[1:], "--out", tmp_path / "one").exit_code == 0
    assert_same_training(tmp_path / "one" / "round-01", out / "round-01")
    one, two = (Plan.load(folder / "round-01" / "plan.json") for folder in (tmp_path / "one", out))
    assert one.removed() == two.removed()
    summary = json.loads((out / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    assert before["test"]["num_images"] == after["test"]["num_images"] == images.count("test")
    assert before["test"]["quality"] > 0.9 and after["test"]["quality"] >= before["test"]["quality"] - 0.01
    example = torch.zeros(1, 1, 32, 32)
    small = pr.load(out, create("lenet5")).eval()
    assert counted_macs(small, example) == after["macs"] <= 0.505 * counted_macs(create("lenet5").eval(), example)
    assert_accuracy(after["test"]["quality"], small, images.loader("test", 256))


def test_killed_eight_times_and_still_the_same_bits(tmp_path: Path) -> None:
    report = json.loads(python("-W", "error", "-m", "tests.run.kill_and_resume", tmp_path, "training"))
    assert len(report["killed after"]) == 8
    assert all(finished == sorted(finished) for finished in report["rounds"])  # no finished round was lost
    assert len({count for finished in report["rounds"] for count in finished}) >= 3, report  # killed all over the run
    wanted = {"model.safetensors", "plan.json", "round-03/model.safetensors", "round-01/pictures.safetensors"}
    assert wanted <= report["whole"].keys()
    assert report["whole"] == report["broken"] == report["again"]


def test_a_killed_run_that_removes_a_branch_has_the_same_bits(tmp_path: Path) -> None:
    report = json.loads(python("-W", "error", "-m", "tests.run.kill_and_resume", tmp_path, "blocks"))
    assert len(report["killed after"]) == 4
    assert len({count for finished in report["rounds"] for count in finished}) >= 2, report
    assert {"model.safetensors", "plan.json", "round-02/model.safetensors"} <= report["whole"].keys()
    assert report["whole"] == report["broken"] == report["again"]
    assert Plan.load(tmp_path / "broken" / "plan.json").keep["conv1:out"] == ()
    small = pr.load(tmp_path / "broken", trained(dropout=0.3))
    assert not {"conv1.weight", "conv2.weight"} & small.state_dict().keys()
