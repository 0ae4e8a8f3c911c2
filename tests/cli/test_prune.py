"""`prunus prune`: a run from the command line, its goals, going on after an interruption, exit codes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import prunus as pr
from prunus.cli import prune as verb
from prunus.run import compress as compress_module
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.proof import assert_accuracy, counted_macs
from tests.run.toys import contents

EXAMPLE = torch.zeros(1, 1, 32, 32)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet-5, trained on the digits for three epochs."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["lenet5", "--data", "digits", "--epochs", "3", "--no-augment", "--device", "cpu"]
    lines(prunus("train", *words, "--lr", "0.05", "--batch-size", "32", "--out", folder))
    return folder / "model.safetensors"


def quick(weights: Path, out: Path, *words: str) -> list[str | Path]:
    """Half a second: scores from 100 images, no repair, and no timing unless asked for."""
    short = ["--data", "digits", "--num-images", "100", "--device", "cpu", "--no-augment", "--repair", "none"]
    short += ["--no-timing"] if "--timing" not in words else []
    return ["prune", "lenet5", "--weights", weights, *short, "--out", out, *words]


def macs(folder: Path) -> int:
    return counted_macs(pr.load(folder, create("lenet5")).eval(), EXAMPLE)


WHOLE = counted_macs(create("lenet5").eval(), EXAMPLE)


RETRAINED = ["--target", "0.4", "--rounds", "2", "--epochs", "1", "--lr", "0.01", "--timing"]


@pytest.fixture(scope="module")
def retrained(weights: Path) -> tuple[Path, list[str]]:
    """The folder of a run of two rounds, and what was printed."""
    out = weights.parent / "retrained"
    return out, lines(prunus(*quick(weights, out, *RETRAINED)))


def test_a_run_and_what_it_says(weights: Path, retrained: tuple[Path, list[str]]) -> None:
    out, said = retrained
    summary = json.loads((out / "summary.json").read_text())
    assert macs(out) == summary["after"]["macs"] <= 0.6 * WHOLE == 0.6 * summary["before"]["macs"]
    text = "\n".join(said)
    for part, name in (("holdout", "held-out"), ("test", "test")):
        before, after = (100 * summary[side][part]["quality"] for side in ("before", "after"))
        assert re.search(rf"{name} accuracy\s+{before:.2f}%\s+{after:.2f}%\s+[+-]\d+\.\d\d points", text)
    gone = 100 * (1 - summary["after"]["macs"] / WHOLE)
    assert re.search(rf"MACs\s+[\d.]+ K\s+[\d.]+ K\s+-{gone:.1f}%", text)
    faster = r"(?:[\d.]+x|not measurable)"  # so small a network may not be faster by much
    engines = [each["engine"] for each in summary["speeds"]]
    assert "onnxruntime" in engines and f" in {engines[0]} at batch 1" in said[0]
    assert said[1] == summary["goal"]["text"]
    for engine in engines:
        assert re.search(rf"ms in {engine} at batch 1\s+[\d.]+\s+[\d.]+\s+{faster}", text)
    assert re.search(r"2 rounds in \d+ s", text) and f"results in {out}" in text
    heard = lines(prunus("evaluate", f"lenet5={out}"))
    found = re.fullmatch(r"accuracy  ([\d.]+)%", heard[1])
    assert found is not None
    small, test = pr.load(out, create("lenet5")), load("digits", size=32).loader("test", 359)
    assert_accuracy(summary["after"]["test"]["quality"], small, test)
    assert_accuracy(float(found[1]) / 100, small, test, printed=1e-4)  # `evaluate` orders memory in another way
    # The same again is done at once and says the same accuracy.
    again = lines(prunus(*quick(weights, out, *RETRAINED)))
    assert again[:6] == said[:6]


@pytest.fixture(scope="module")
def solved(weights: Path) -> tuple[Path, list[str]]:
    """The folder of a run that is repaired and not retrained, and what was printed."""
    out = weights.parent / "solved"
    words = ["--data", "digits", "--device", "cpu", "--target", "0.5", "--set", "num_repair_images=200", "--no-timing"]
    return out, lines(prunus("prune", "lenet5", "--weights", weights, *words, "--out", out))


def test_no_training_at_all(weights: Path, solved: tuple[Path, list[str]], tmp_path: Path) -> None:
    """With a solve alone: the metric that knows of it, the split of least error, no sensitivity; and a report."""
    out, said = solved
    assert said[-1].startswith("to retrain as well, which may add accuracy: prunus prune lenet5")
    assert said[-1].endswith("--target 0.5 --no-timing --set num_repair_images=200 --device cpu --epochs 3 --out NEW")
    summary = json.loads((out / "summary.json").read_text())
    settings = summary["settings"]
    assert (settings["repair"], settings["epochs"]) == ("solve", 0)
    assert (settings["metric"], settings["split"], settings["trials"]) == ("rebuilt", "least_error", "repaired")
    assert macs(out) == summary["after"]["macs"] <= 0.5 * WHOLE
    assert not (out / "round-01" / "sensitivity.json").exists()
    page = (out / "report.html").read_text()
    assert "least_error" in page and "rebuilt" in page
    lines(prunus(*quick(weights, tmp_path / "cut", "--target", "0.5", "--epochs", "0", "--split", "uniform")))
    assert "split uniform" in (tmp_path / "cut" / "report.html").read_text()
    cut = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert cut["settings"]["metric"] == "gsd_reader"
    assert summary["after"]["holdout"]["loss"] < cut["after"]["holdout"]["loss"]


@pytest.mark.parametrize(
    "words, most, least",
    [
        (["--macs", "250K"], 250e3, 200e3),
        (["--target", "0.25", "--split", "ratio"], 0.75 * WHOLE, 0.65 * WHOLE),
        (["--target", "0.3", "--set", "cost=params"], 0.7 * WHOLE, 0.55 * WHOLE),
        (["--ratio", "0.5", "--metric", "l1"], 0.5 * WHOLE, 0.2 * WHOLE),
        (["--ratio", "0.25", "--exclude", "conv1*", "--streams", "coupled"], 0.95 * WHOLE, 0.6 * WHOLE),
    ],
)
def test_goals(weights: Path, tmp_path: Path, words: list[str], most: float, least: float) -> None:
    lines(prunus(*quick(weights, tmp_path / "run", "--epochs", "0", *words)))
    assert least <= macs(tmp_path / "run") <= most + 0.005 * WHOLE


def test_params_and_points(weights: Path, tmp_path: Path) -> None:
    lines(prunus(*quick(weights, tmp_path / "a", "--epochs", "0", "--params", "40K", "--only", "conv2:out")))
    small = pr.load(tmp_path / "a", create("lenet5"))
    left = sum(p.numel() for p in small.parameters() if p.dim() > 1)
    assert 35_000 <= left <= 40_000 + 300
    lines(prunus(*quick(weights, tmp_path / "b", "--epochs", "0", "--max-drop", "3")))
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    assert summary["settings"]["max_drop"] == 3
    assert summary["before"]["holdout"]["quality"] - summary["after"]["holdout"]["quality"] <= 0.03


def test_interrupted_and_resumed(
    weights: Path, retrained: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compress_module.run_round

    def interrupted(context: Any, rounds: Any, *rest: Any) -> Any:
        if len(rounds) == 1:
            raise KeyboardInterrupt
        return real(context, rounds, *rest)

    monkeypatch.setattr(compress_module, "run_round", interrupted)
    result = prunus(*quick(weights, tmp_path / "broken", *RETRAINED))
    assert result.exit_code == 130 and "interrupted" in result.stderr
    assert not (tmp_path / "broken" / "summary.json").exists()
    monkeypatch.undo()
    said = lines(prunus("prune", "--resume", tmp_path / "broken"))
    assert f"results in {tmp_path / 'broken'}" in "\n".join(said)
    whole, broken = contents(retrained[0]), contents(tmp_path / "broken")
    for name in ("model.safetensors", "plan.json", "round-02/scores.safetensors", "config.json"):
        assert whole[name] == broken[name]
    refused = prunus(*quick(weights, tmp_path / "broken", *RETRAINED, "--set", "k=1"))
    assert refused.exit_code == 1 and "holds another run: settings.k was " in refused.stderr


def test_a_folder_of_something_else_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = prunus("prune", "--resume", tmp_path)
    assert result.exit_code == 1 and "was not written by `prunus prune`" in result.stderr


def test_without_arguments_it_is_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[dict[str, Any], Path]] = []
    monkeypatch.setattr(verb, "_prune", lambda asked, _, folder, **__: heard.append((asked.record(), folder)))
    for words in ([], ["--epochs", "3"], ["--max-drop", "0"], ["--out", "here"]):
        lines(prunus("prune", *words))
    (demo, folder), (longer, _), (other, _), (_, named) = heard
    assert folder == Path("runs/prune-resnet8-digits") and named == Path("here")
    assert (demo["model"], demo["data"], demo["speedup"], demo["epochs"]) == ("resnet8", "digits", 1.5, 0)
    assert demo["augment"] is False and longer == {**demo, "epochs": 3}
    assert other["speedup"] is None and other["max_drop"] == 0


def test_paper_mode_says_what_it_costs_and_follows_the_paper(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--paper", "--target", "0.2", "--set", "alpha=4", "--epochs", "1"]
    text = "\n".join(lines(prunus(*quick(weights, out, *words))))
    assert "the paper's settings: G-SD, Algorithm 1 on all held-out images, alpha 4," in text
    assert "different from the paper: epochs 200 -> 1" in text and "different from the paper: num_images" in text
    assert re.search(r"\d+ (to \d+ )?rounds? of 1 epoch\b", text)
    assert re.search(r"at most (\d+ h )?(\d+ min )?([\d.]+ s )?on this machine", text)
    settings = json.loads((out / "config.json").read_text())["settings"]
    assert (settings["metric"], settings["split"], settings["exact"]) == ("gsd", "algorithm1", True)
    assert (settings["repair"], settings["distill"], settings["lr"]) == ("none", False, 0.01)
    rounds = json.loads((out / "summary.json").read_text())["rounds"]
    assert [one["alpha"] for one in rounds] == [4.0] * len(rounds)
    for line in ("augmentation of the training images -> none", "num_images all -> 100"):
        assert f"different from the paper: {line}" in text
    assert "no recipe has a network of this name: which layers are left alone is your choice (--exclude)" in text


def test_a_metric_with_options(weights: Path, tmp_path: Path) -> None:
    """Scores, folder, report and --resume have the metric as it was typed."""
    out = tmp_path / "run"
    words = ["--target", "0.2", "--metric", "gsd:ridge=0", "--epochs", "0", "--rounds", "1"]
    lines(prunus(*quick(weights, out, *words)))
    config = json.loads((out / "config.json").read_text())
    assert config["settings"]["metric"] == config["command"]["metric"] == "gsd:ridge=0"
    assert "--metric gsd:ridge=0" in config["command_line"]
    about = json.loads((out / "round-01" / "scores.json").read_text())["metrics"]
    assert about["gsd"]["options"]["ridge"] == 0.0 and about["gsd"]["num_images"] == 100
    assert "metric gsd:ridge=0" in (out / "report.html").read_text()
    shutil.rmtree(out / "round-01")
    (out / "summary.json").unlink()
    lines(prunus("prune", "--resume", out))
    assert (out / "summary.json").exists()
    other = prunus("prune", "--resume", out, "--metric", "gsd")
    assert other.exit_code == 1 and "--metric gsd differs from the run" in other.stderr


def test_the_alpha_that_a_number_of_rounds_solves_is_written_down(weights: Path, tmp_path: Path) -> None:
    """k x alpha x FLOSS_max = 40% of the MACs, with k = 1 of LeNet-5's two units that are pruned."""
    out = tmp_path / "run"
    lines(prunus(*quick(weights, out, "--target", "0.4", "--rounds", "1", "--epochs", "0", "--set", "k=1")))
    first, second = 28 * 28 * 25 + 16 * 10 * 10 * 25, 6 * 10 * 10 * 25 + 120 * 25  # MACs of a channel of conv1, conv2
    alpha = 0.4 * WHOLE / max(first, second)
    settings = json.loads((out / "config.json").read_text())["settings"]
    summary = json.loads((out / "summary.json").read_text())
    assert settings["alpha"] == summary["settings"]["alpha"] == pytest.approx(alpha, abs=1e-4)
    assert summary["rounds"][0]["alpha"] == pytest.approx(alpha, rel=1e-6)
    assert f"{settings['alpha']}" in (out / "report.html").read_text()


# -- options next to --resume


@pytest.mark.parametrize(
    "words, named",
    [
        (["--target", "0.7"], "--target 0.7 differs from the run"),
        (["--metric", "l1"], "--metric l1 differs"),
        (["--only", "conv1*"], "--only conv1* differs"),
        (["--no-augment"], "--no-augment differs"),
        (["--data", "mnist"], "--data mnist differs"),
        (["--out", "elsewhere"], "--out elsewhere differs"),
        (["--set", "preset=cifar"], "--set preset=cifar differs"),
        (["--max-drop", "1"], "which was started without it: --resume"),
        (["resnet8"], "MODEL resnet8 differs"),
    ],
)
def test_other_options_are_refused(solved: tuple[Path, list[str]], words: list[str], named: str) -> None:
    before = contents(solved[0])
    result = prunus("prune", "--resume", solved[0], *words)
    assert result.exit_code == 1 and named in result.stderr and "--resume continues a run" in result.stderr
    assert contents(solved[0]) == before


def test_the_same_options_may_be_repeated(solved: tuple[Path, list[str]]) -> None:
    same = ["--target", "0.5", "--data", "digits", "--epochs", "0", "--set", "num_repair_images=200"]
    assert lines(prunus("prune", "lenet5", "--resume", solved[0], *same, "--out", solved[0]))


# -- the command in the report asks for the very same run

ASKED: list[dict[str, Any]] = [
    {"model": "resnet8", "weights": "w.pt", "rounds": 2, "epochs": 12, "lr": 0.02, "augment": False},
    {"model": "my.nets:make it", "weights": "a b/c.pt", "data": "folder:x'y", "max_drop": 0.5, "target": None},
    {"model": "vgg16", "weights": "w.pt", "params": 4e5, "exclude": ("a*", "b"), "only": ("c",), "target": None},
    {"model": "lenet5", "weights": "w.pt", "metric": "gsd:ridge=0", "mean": "0.5", "workers": 2, "holdout": "test:0.5"},
    {"model": "lenet5", "weights": "w.pt", "alpha": 2.0, "streams": "coupled", "k": 3, "seed": 7, "device": "cpu"},
]


@pytest.mark.parametrize("changes", ASKED, ids=lambda changes: changes["model"])
def test_typed_again_it_asks_for_the_same(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a b/c.pt", "w.pt", "x'y/file"):  # what the commands name must exist
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    heard: list[verb.Request] = []
    monkeypatch.setattr(verb, "_prune", lambda request, *_, **__: heard.append(request))
    asked = verb.Request.from_record({"data": "digits", "target": 0.5, **changes})
    program, *words = shlex.split(asked.command_line())
    assert program == "prunus" and lines(prunus(*words)) == [] and heard == [asked]
    assert verb.Request.from_record(json.loads(json.dumps(asked.record()))) == asked


def test_all_of_the_time_is_accounted_for_also_of_what_was_done_before_an_interruption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = load("digits", size=32)
    model = create("lenet5")
    train, holdout = digits.loader("train", 64, limit=128), digits.loader("holdout", 64)
    done = pr.compress(model, train, holdout, target=0.3, repair="none", timing=False)
    seconds = {"score": 5.0, "repair": 25.0, "this_call": 0.2}
    verb.print_result(replace(done, summary={**done.summary, "seconds": seconds}), tmp_path, tmp_path / "report.html")
    assert " in 30 s: score 5 s, repair 25 s\n" in capsys.readouterr().out
    seconds["this_call"] = 76.0
    verb.print_result(replace(done, summary={**done.summary, "seconds": seconds}), tmp_path, tmp_path / "report.html")
    assert " in 76 s: score 5 s, repair 25 s, evaluation, timing and the rest 46 s\n" in capsys.readouterr().out
