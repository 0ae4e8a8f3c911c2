"""One way to name a network in every verb: a name, NAME=WEIGHTS, or the folder of a run."""

from __future__ import annotations

import html
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import prunus as pr
from prunus.cli.network import NamedModel, resolve
from prunus.errors import FileError, ModelError
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.proof import assert_accuracy, counted_macs

QUICK = ["--epochs", "0", "--metric", "l2", "--device", "cpu"]
EXAMPLE = torch.zeros(1, 1, 32, 32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run with seed 3, a pruning run that starts from it, and one that goes on from that."""
    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        data = ["--data", "digits", "--holdout", "train:0.2", "--mean", "0.3"]
        more = ["--seed", "3", "--epochs", "3", "--batch-size", "32", "--lr", "0.02", "--device", "cpu"]
        lines(prunus("train", "lenet5", *data, *more, "--out", "trained"))
        lines(prunus("prune", "trained", "--ratio", "0.3", "--out", "first", *QUICK))
        lines(prunus("prune", "first", "--target", "0.2", *QUICK))
    return place


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def network(folder: str | None = None) -> torch.nn.Module:
    """The network of a folder, whose plan leads from the original; or the original."""
    model = create("lenet5", num_classes=10)
    return (model if folder is None else pr.load(folder, model)).eval()


def test_a_run_goes_on_from_a_pruned_network(place: Path) -> None:
    assert (place / "runs" / "first-2" / "summary.json").exists()  # the folder that it is written to by default
    whole, first, second = (counted_macs(network(f), EXAMPLE) for f in (None, "first", "runs/first-2"))
    assert first < 0.8 * whole and 0.7 * first < second <= 0.8 * first
    config = json.loads((place / "runs" / "first-2" / "config.json").read_text())
    # the data set, its share of held-out images and its mean come from the training run, by way of the first one
    assert {k: config["command"][k] for k in ("model", "data", "holdout", "mean")} == {
        "model": "first",
        "data": "digits",
        "holdout": "train:0.2",
        "mean": "0.3",
    }
    summary = json.loads((place / "runs" / "first-2" / "summary.json").read_text())
    # images are divided with the seed of the training run, so that what it was trained on is never held out
    data = load("digits", size=32, holdout="train:0.2", mean=(0.3,), seed=3)
    assert_accuracy(summary["after"]["holdout"]["quality"], network("runs/first-2"), data.loader("holdout", 256))
    assert summary["after"]["holdout"]["num_images"] == data.count("holdout")
    assert_accuracy(summary["before"]["holdout"]["quality"], network("first"), data.loader("holdout", 256))
    found = prunus("evaluate", "runs/first-2", "--part", "holdout", "--device", "cpu", "--json")
    assert json.loads(found.stdout)["loss"] == pytest.approx(summary["after"]["holdout"]["loss"], rel=1e-4)


def test_a_run_that_went_on_needs_no_other_folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(place / "runs" / "first-2", tmp_path / "second")  # neither `first` nor `trained` is here
    expected = json.loads((tmp_path / "second" / "summary.json").read_text())["after"]["holdout"]
    images = torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        answer = network("runs/first-2")(images)
    monkeypatch.chdir(tmp_path)
    with torch.no_grad():
        assert torch.equal(network("second")(images), answer)
    found = prunus("evaluate", "second", "--part", "holdout", "--device", "cpu", "--json")
    assert json.loads(found.stdout)["loss"] == pytest.approx(expected["loss"], rel=1e-4)  # on the same images


def test_runs_that_go_on_are_compared_with_the_original(place: Path) -> None:
    compared = pr.compare([place / "first", place / "runs" / "first-2"])
    first, second = compared.to_dict()["runs"]
    assert (first["name"], second["name"], second["network"]) == ("first", "first-2", "lenet5")
    assert first["before"] == second["before"]  # the original: its quality, its costs, and a speed-up of 1
    macs = [counted_macs(network(f), EXAMPLE) for f in (None, "first", "runs/first-2")]
    found = [first["before"], first["after"], second["after"]]
    assert [side["costs"]["MACs per image"] for side in found] == macs
    own = json.loads((place / "runs" / "first-2" / "summary.json").read_text())["speeds"]
    speeds, earlier, step = (
        {each["engine"]: each for each in side} for side in (second["speeds"], first["speeds"], own)
    )
    in_both = earlier.keys() & step.keys()  # engines may be left out where the time for timing ends
    assert "onnxruntime" in in_both
    for name in in_both:
        assert speeds[name]["ratio"] == pytest.approx(earlier[name]["ratio"] * step[name]["ratio"])
        assert speeds[name]["low"] == pytest.approx(earlier[name]["low"] * step[name]["low"])
    assert not [note for note in compared.notes if "different" in note]
    assert compared.notes == ("B goes on from first. Its figures are relative to the original.",)


def test_how_to_load_it_is_said_and_works(place: Path) -> None:
    printed = lines(prunus("prune", "--resume", "runs/first-2"))[-2]
    code = printed.removeprefix("load it with: ")
    assert code == 'prunus.load("runs/first-2", original_model).eval()'
    page = (place / "runs" / "first-2" / "report.html").read_text()
    original = "create('lenet5', num_classes=10)"
    assert f"prunus.load('runs/first-2', {original}).eval()" in html.unescape(page)


def test_every_verb_takes_a_run(place: Path, tmp_path: Path) -> None:
    name = "runs/first-2"
    expected = network(name)
    found = json.loads("\n".join(lines(prunus("evaluate", name, "--device", "cpu", "--json"))))
    data = load("digits", size=32, holdout="train:0.2", mean=(0.3,))
    assert found["num_images"] == data.count("test") and found["data"] == "digits"
    assert_accuracy(found["quality"]["value"], expected, data.loader("test", 256))
    macs = counted_macs(expected, EXAMPLE)
    assert json.loads("\n".join(lines(prunus("inspect", name, "--json"))))["macs"] == macs
    scored = prunus("inspect", name, "--scores", "l1", "--json", "--device", "cpu")
    weights = expected.state_dict()["conv2.weight"].abs().sum((1, 2, 3))
    (unit,) = [v for k, v in json.loads("\n".join(lines(scored)))["scores"]["l1"].items() if k == "conv2:out"]
    assert torch.tensor(unit).argsort().tolist() == weights.argsort().tolist()
    assert "untrained" not in scored.stderr
    few = ["--num-eval-images", "50", "--num-images", "50", "--metric", "l2"]
    tried = lines(prunus("inspect", name, "--sensitivity", *few))
    assert any(line.startswith("conv1:out ") for line in tried)
    lines(prunus("show", "channels", name, "--classes", "2", "--device", "cpu", "--out", tmp_path / "p"))
    assert (tmp_path / "p" / "channels.png").exists()
    lines(prunus("export", name, tmp_path / "small.safetensors"))
    bench = prunus("bench", name, "--batch", "1", "--rounds", "1", "--engine", "eager", "--json")
    assert macs in [words["macs"] for words in json.loads(bench.stdout)["networks"].values()]


def test_weights_after_the_name(place: Path) -> None:
    save_file(create("lenet5").state_dict(), place / "w.safetensors")
    for verb in (["evaluate", "lenet5=w.safetensors"], ["evaluate", "lenet5", "--weights", "w.safetensors"]):
        result = prunus(*verb, "--data", "digits", "--device", "cpu")
        assert result.exit_code == 0 and "untrained" not in result.stderr
    assert resolve("lenet5", Path("w.pt")) == NamedModel("lenet5", "lenet5", Path("w.pt"))
    with pytest.raises(ModelError, match="first has its own weights: leave out --weights"):
        resolve("first", Path("w.pt"))


def test_what_is_resolved() -> None:
    assert resolve("lenet5") == NamedModel("lenet5", "lenet5")
    assert resolve("a=b/c.pt") == NamedModel("a=b/c.pt", "a", Path("b/c.pt"))
    assert resolve("runs/first-2").folder == Path("runs/first-2")
    assert resolve("trained").weights == Path("trained/model.safetensors")
    assert [resolve(n).has_weights for n in ("lenet5", "timm:x", "my.nets:build", "first", "trained", "a=b")] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]


def test_folders_that_are_no_networks(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="runs/nothing: there is no such folder; a network is a folder"):
        resolve("runs/nothing")
    with pytest.raises(FileError, match=r"is a folder without plan.json; a pruned network has plan.json"):
        resolve(str(tmp_path))
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(place / "first" / "config.json", unfinished)
    with pytest.raises(FileError, match=f"is not finished; to continue it: prunus prune --resume {unfinished}"):
        resolve(str(unfinished))
    moved = tmp_path / "moved"
    shutil.copytree(place / "runs" / "first-2", moved)
    config = json.loads((moved / "config.json").read_text())
    config["command"]["model"] = "runs/gone"
    del config["start"]  # which names the network
    (moved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="was pruned from runs/gone, which cannot be opened: runs/gone: there is no"):
        resolve(str(moved))
    result = prunus("train", "first")
    assert result.exit_code == 1 and "first holds a pruned network" in result.stderr
