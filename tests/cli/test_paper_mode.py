"""`secateur prune --paper`: which layers it leaves alone, and what it says before the run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import secateur as sc
from secateur.cli import paper_mode
from secateur.cli import prune as verb
from secateur.errors import RunError
from secateur.running import compress as compress_module
from secateur.running import run_estimate
from secateur.running.run_estimate import Speed
from secateur.studies.recipes.recipe import load_recipe
from secateur.zoo.models import create
from tests.cli.command_line import lines, secateur


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A weight file that no test opens."""
    save_file(create("lenet5").state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def heard_by(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> dict[str, Any]:
    """The options that a run would start with."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(verb, "_prune", lambda asked, folder: heard.append(asked))
    lines(secateur("prune", *words))
    return heard[0]


@pytest.mark.parametrize(
    ("model", "left_alone"),
    [
        ("resnet50", ("conv1:out", "*.downsample.0:in")),  # Table 4
        ("vgg16_imagenet", ("features.28:out",)),  # Table 3: conv5_3
        ("preresnet164", ("conv1:out", "*.shortcut:in")),
        ("resnet56", ()),
        ("lenet5", ()),
    ],
)
def test_it_leaves_the_papers_layers_alone(
    weights: Path, model: str, left_alone: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [model, "--weights", weights, "--data", "digits", "--paper"]
    assert heard_by(monkeypatch, *words)["exclude"] == left_alone
    assert heard_by(monkeypatch, *words, "--exclude", "mine")["exclude"] == ("mine",)
    only = heard_by(monkeypatch, *words, "--only", "mine")
    assert only["only"] == ("mine",) and only["exclude"] == ()


def test_the_demo_has_the_papers_training(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = heard_by(monkeypatch, "--paper")
    assert (asked["model"], asked["data"], asked["rounds"], asked["k"]) == ("resnet8", "digits", None, None)
    assert (asked["preset"], asked["epochs"], asked["lr"], asked["batch_size"]) == ("cifar", 200, 0.01, 128)
    assert asked["augment"] is True and asked["distill"] is False


def test_it_keeps_what_was_typed_with_the_value_of_a_default(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["resnet50", "--weights", weights, "--data", f"imagenet:{tmp_path}", "--paper"]
    plain = heard_by(monkeypatch, *words)
    assert (plain["preset"], plain["batch_size"]) == ("imagenet-resnet50", 256)
    typed = heard_by(monkeypatch, *words, "--preset", "cosine", "--batch-size", "128")
    assert (typed["preset"], typed["batch_size"], typed["epochs"]) == ("cosine", 128, 30)


def stop(*_: Any, **__: Any) -> None:
    """In the place of `compress`."""
    raise RunError("stopped here")


def test_it_says_what_is_not_pruned_and_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """preresnet164: 161 units take part, a third of them is 54."""
    file = tmp_path / "w.safetensors"
    save_file(create("preresnet164", 10, in_channels=1).state_dict(), file)
    monkeypatch.setattr(compress_module, "compress", stop)
    monkeypatch.setattr(run_estimate, "measure_speed", lambda *_: Speed(0.001, 0.004, 128, None))
    words = ["prune", "preresnet164", "--weights", file, "--data", "digits", "--size", "8", "--device", "cpu"]
    words += ["--paper"]
    more = ["--batch-size", "64", "--metric", "gsd:ridge=0", "--out", tmp_path / "run"]
    said = secateur(*words, *more, "--k", "54", columns=400).stdout.splitlines()
    assert said[0].startswith("the paper's settings: G-SD without a ridge, as printed, Algorithm 1 on all held-out")
    assert "not pruned, as in the paper: conv1:out, *.shortcut:in" in said
    assert [line for line in said if line.startswith("different")] == ["different from the paper: batch_size 128 -> 64"]
    assert len([line for line in said if line.startswith("left open in the paper: ")]) == 2
    said = secateur(*words, "--k", "9", "--exclude", "conv1:out", "--out", tmp_path / "run").stdout.splitlines()
    assert "different from the paper: k a third of the units -> 9" in said
    assert "different from the paper: exclude conv1:out, *.shortcut:in -> conv1:out" in said
    assert not any(line.startswith("not pruned, as in the paper") for line in said)


def test_it_names_what_the_recipe_of_the_network_names() -> None:
    asked = {"model": "preresnet164", "data": "cifar100", "batch_size": 128, "augment": True}
    graph = sc.trace(create("preresnet164", 100), torch.zeros(1, 3, 8, 8), check=False)
    recipe = load_recipe("resnet164-cifar100")
    settings = sc.Settings.paper("cifar100", "preresnet164", exclude=("conv1:out", "*.shortcut:in"))
    found = paper_mode._departures(graph, settings, asked, recipe, own=False)
    assert found == ["The first block has no selection here: it reads the stem, which is no stream."]
