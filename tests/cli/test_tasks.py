"""Every verb with a task: folders of masks, tables of labels, and tasks and data of the user's own."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import onnxruntime
import pytest
import torch

import prunus as pr
from tests.cli.command_line import lines, prunus
from tests.cli.task_files import own_module, photos, street
from tests.tasks.nets import Wrapped, sums


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    street(tmp_path / "street")
    photos(tmp_path / "photos")
    return own_module(tmp_path)


def given(module: str, task: str) -> list[str]:
    """MODEL, --task and --data of a task."""
    if task == "segmentation":
        return [f"{module}:unet", "--task", task, "--data", "folder:street"]
    if task == "multilabel":
        return [f"{module}:tagger", "--task", task, "--data", "folder:photos"]
    name = f"{module}:error" if task == "own" else task
    return [f"{module}:adder", "--task", name, "--data", f"{module}:pairs"]


NAMES = {"segmentation": "mean IoU", "multilabel": "mean F1", "regression": "R2", "own": "minus error"}


@pytest.mark.parametrize("task", NAMES)
def test_train_evaluate_and_the_run_again(module: str, task: str) -> None:
    said = lines(prunus("train", *given(module, task), "--epochs", "2", "--out", "trained"))
    assert any(line.startswith(f"held-out: {NAMES[task]} ") for line in said)
    assert any(line.startswith(f"test: {NAMES[task]} ") for line in said)
    assert "accuracy" not in " ".join(said) and "top-1" not in " ".join(said)
    found = json.loads(" ".join(lines(prunus("evaluate", "trained", "--json"))))  # data and task are the run's
    assert found["quality"]["name"] == NAMES[task] and not found["details"]
    summary = json.loads(Path("trained/summary.json").read_text())
    assert found["quality"]["value"] == pytest.approx(summary["test"]["quality"], abs=1e-6)
    said = lines(prunus("evaluate", "trained", "--part", "holdout"))
    assert any(line.startswith(NAMES[task]) for line in said)


@pytest.mark.parametrize("task", ["multilabel", "own"])
def test_score_sensitivity_and_check(module: str, task: str) -> None:
    metric = "reader_energy" if task in ("regression", "own") else "gsd_reader"
    said = lines(prunus("inspect", *given(module, task), "--scores", metric))
    assert f"units scored by {metric}" in said[0]
    said = lines(prunus("inspect", *given(module, task), "--sensitivity", "--out", "sensitivity"))
    assert NAMES[task] in said[0] and "accuracy" not in " ".join(said)
    found = json.loads(Path("sensitivity/sensitivity.json").read_text())
    assert found["measure"] == NAMES[task]
    result = prunus("check", *given(module, task), "--json")
    found = json.loads(result.stdout)
    assert found["quality"]["name"] == NAMES[task] and found["accuracy"]["num_images"] > 0
    assert not any("accuracy" in words for words in (*found["problems"], *found["notes"]))
    if task == "own":  # the whole name of a quality
        (told,) = [line for line in lines(prunus("check", *given(module, task))) if "held-out images" in line]
        assert told.split()[:3] == ["quality", "minus", "error"] and "metres" in told


@pytest.mark.parametrize("task", ["segmentation", "own"])
def test_prune_and_go_on(module: str, task: str) -> None:
    how = ["--target", "0.3", "--epochs", "1", "--lr", "0.01", "--repair", "bn", "--no-augment", "--no-timing"]
    said = " ".join(lines(prunus("prune", *given(module, task), *how, "--out", "run", columns=200)))
    assert f"held-out {NAMES[task]}" in said and f"test {NAMES[task]}" in said and "accuracy" not in said
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["quality"]["name"] == NAMES[task] and summary["removed"]["macs"] >= 0.295
    page = Path("run/report.html").read_text()
    help_of_settings = ("held-out accuracy (or of the task", "held-out accuracy (the quality of the task)")
    for words in help_of_settings:
        assert words in page
        page = page.replace(words, "")
    assert NAMES[task] in page and "accuracy" not in page.lower()
    assert prunus("prune", "--resume", "run").exit_code == 0
    found = json.loads(" ".join(lines(prunus("evaluate", "run", "--json"))))
    assert found["quality"]["value"] == pytest.approx(summary["after"]["test"]["quality"], abs=1e-6)


def test_studies(module: str) -> None:
    task = "regression"
    how = ("--metrics", "l1,reader_energy", "--ratios", "0.3", "--repair", "bn", "--out", "study")
    said = lines(prunus("study", "effectiveness", *given(module, task), *how))
    assert NAMES[task] in said[0] and said[1].split() == ["network", "metric", "0%", "30%"]
    with Path("study/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and all("quality" in row and "accuracy" not in row for row in rows)
    base = json.loads(" ".join(lines(prunus("evaluate", *given(module, task), "--json"))))
    assert float(rows[0]["quality"]) == pytest.approx(base["quality"]["value"], abs=0.02)
    assert NAMES[task] in Path("study/report.html").read_text()
    more = ("--start", "0.25", "--end", "0.4", "--iterations", "1", "--epochs", "0", "--metric", "l1", "--out", "fig5")
    said = lines(prunus("study", "sensitivity", *given(module, task), *more))
    assert any(line.startswith("flops") for line in said)
    notes = json.loads(Path("fig5/study.json").read_text())["notes"]
    assert NAMES[task] in notes[0] and not any("accuracy" in note for note in notes)


def test_what_does_not_fit_is_said(module: str) -> None:
    def refused(*words: str) -> str:
        found = prunus(*words)
        assert found.exit_code == 1
        return " ".join(found.output.split())

    unet = f"{module}:unet"
    assert "take the task segmentation" in refused("evaluate", unet, "--data", "folder:street")
    assert "take the task multilabel" in refused("evaluate", f"{module}:tagger", "--data", "folder:photos")
    assert "has one class per image" in refused("evaluate", unet, "--task", "segmentation", "--data", "digits")
    words = refused("evaluate", unet, "--task", "regression", "--data", "folder:street")
    assert "holds no labels for regression: give loaders of your own" in words
    words = refused("show", "channels", f"{module}:adder", "--data", f"{module}:pairs")
    assert "this needs one class per image" in words
    assert "has no callable 'nothing'" in refused("evaluate", unet, "--task", f"{module}:nothing", "--data", "digits")
    words = refused("inspect", *given(module, "regression"), "--scores", "gsd")
    assert "separates classes, and the labels of the task are none" in words
    words = refused("evaluate", *given(module, "regression"), "--size", "8")
    assert f"--size does not apply to {module}:pairs, which prepares and divides its images itself" in words


# -- two inputs of 3 dimensions and a dataclass as output, through prune, resume, export, bench and report

ADDER = """
import torch
from tests.tasks.nets import Wrapped, sums

def adder():
    torch.manual_seed(0)
    return Wrapped({0})

def data():
    return sums({0}), sums({0}, seed=1), sums({0}, seed=2)
"""


def test_from_prune_to_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dimensions, name = 3, "user_of_test_tasks"
    (tmp_path / f"{name}.py").write_text(ADDER.format(dimensions))
    given = [f"{name}:adder", "--task", "regression", "--data", f"{name}:data"]
    how = ["--target", "0.4", "--repair", "bn", "--epochs", "1", "--lr", "0.01", "--no-timing", "--out", "run"]
    lines(prunus("prune", *given, *how))
    assert prunus("prune", "--resume", "run").exit_code == 0
    assert "R2" in Path("run/report.html").read_text()

    torch.manual_seed(0)
    small = pr.load("run", Wrapped(dimensions)).eval()
    (left, right), _ = sums(dimensions, seed=3)[0]
    with torch.no_grad():
        wanted = small(left, right)
    lines(prunus("export", "run", "small.onnx"))
    session = onnxruntime.InferenceSession("small.onnx")
    feeds = {"left": left.numpy(), "right": right.numpy()}
    found = [torch.from_numpy(each) for each in session.run(None, feeds)]
    assert torch.allclose(found[0], wanted.features, atol=1e-5) and torch.allclose(found[1], wanted.logits, atol=1e-5)
    lines(prunus("export", "run", "small.pt2"))
    again = torch.export.load("small.pt2").module()(left, right)
    assert torch.allclose(again.logits, wanted.logits, atol=1e-5)

    engines = ("--engine", "eager", "--engine", "onnxruntime")
    benched = json.loads(prunus("bench", "run", *engines, "--batch", "4", "--rounds", "2", "--json").stdout)
    assert [(row["network"], row["engine"]) for row in benched["rows"]] == [
        (network, engine) for network in ("original", "run") for engine in ("eager", "onnxruntime")
    ]
    macs = [benched["networks"][network]["macs"] for network in ("original", "run")]
    assert macs[1] <= 0.61 * macs[0] and benched["notes"] == []
    sides = " x ".join(["1", *["6"] * dimensions])
    assert f"on {sides} and {sides}:" in lines(prunus("inspect", "run"))[0]
