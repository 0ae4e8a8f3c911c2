"""`prunus prune --paper`: which layers it leaves alone, and what it says before the run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import prunus as pr
from prunus.cli import prune as verb
from prunus.cli.images import DataOptions
from prunus.cli.network import NamedModel
from prunus.cli.options import DeviceOptions
from prunus.cli.prune import PruneOptions, Request, beside_the_paper
from prunus.errors import RunError
from prunus.run import checkup as run_estimate
from prunus.run import compress as compress_module
from prunus.run.checkup import Speed
from prunus.studies.recipes import load_recipe
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A weight file that no test opens."""
    save_file(create("lenet5").state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def heard_by(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> dict[str, Any]:
    """The options that a run would start with."""
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(verb, "_prune", lambda asked, *_, **__: heard.append(asked.record()))
    lines(prunus("prune", *words))
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
    typed = heard_by(monkeypatch, *words, "--set", "preset=cosine", "--batch-size", "128")
    assert (typed["preset"], typed["batch_size"], typed["epochs"]) == ("cosine", 128, 30)


def stop(*_: Any, **__: Any) -> None:
    """In the place of `compress`."""
    raise RunError("stopped here")


def test_it_says_what_is_not_pruned_and_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """preresnet164: 161 units take part, a third of them is 54."""
    file = tmp_path / "w.safetensors"
    save_file(create("preresnet164", 10, in_channels=1).state_dict(), file)
    monkeypatch.setattr(compress_module, "compress", stop)
    monkeypatch.setattr(run_estimate, "measure_speed", lambda *_, **__: Speed(0.001, 0.004, 128))
    words = ["prune", "preresnet164", "--weights", file, "--data", "digits", "--size", "8", "--device", "cpu"]
    words += ["--paper"]
    more = ["--batch-size", "64", "--metric", "gsd:ridge=0", "--target", "0.5", "--out", tmp_path / "run"]
    said = prunus(*words, *more, "--set", "k=54", columns=400).stdout.splitlines()
    assert said[0].startswith("the paper's settings: G-SD without a ridge, as printed, Algorithm 1 on all held-out")
    assert "not pruned, as in the paper: conv1:out, *.shortcut:in" in said
    first_block = "The first block has no selection here: it reads the stem, which is no stream."
    assert [line for line in said if line.startswith("different")] == [
        f"different from the paper: {text}" for text in (first_block, "batch_size 128 -> 64")
    ]
    open_points = [line for line in said if line.startswith("left open in the paper: ")]
    assert open_points and not any("ridge" in line for line in open_points)
    assert open_points[-1].endswith("no schedule for digits: that of its CIFAR experiments is used here.")


def differing(model: str, data: str, settings: pr.Settings, classes: int = 10) -> list[str]:
    """What differs from the paper in a run of a network in it."""
    request = Request(model, DataOptions(data), PruneOptions(), settings, DeviceOptions())
    side = 64 if model == "resnet50" else 8
    graph = pr.trace(create(model, classes), torch.zeros(1, 3, side, side), check=False)
    return beside_the_paper(graph, request, NamedModel(model, model))[1]


def test_what_is_about_the_data_of_a_recipe_is_named_on_its_data_only() -> None:
    settings = pr.Settings.paper("cifar10", "resnet50", exclude=("conv1:out", "*.downsample.0:in"))
    block = "ResBlock1_1 has no selection here: it reads the stem, which is no stream."
    assert differing("resnet50", "cifar10", settings) == [block]
    recipe = load_recipe("resnet50-imagenet-a")
    assert len(recipe.departs) == 2 and recipe.departs[0].startswith("Augmentation") and recipe.departs[1] == block
