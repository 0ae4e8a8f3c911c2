"""A flat folder of photographs, without labels, through all verbs: quality is agreement with the original network."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import prunus as pr
from prunus.zoo.data import load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights
from tests.cli.command_line import prunus
from tests.tasks import scenes

CLASSES = 7  # of the network, which the folder does not say, and the weight file does
NETWORK = "resnet8=w.safetensors"
PHOTOS = ("--data", "folder:photos", "--device", "cpu")
QUICK = ("--no-timing", "--set", "num_repair_images=60")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """200 photographs in one folder, the weights of a network, and the run that pruned it."""
    place = tmp_path_factory.mktemp("unlabelled")
    (place / "photos").mkdir()
    draw = np.random.default_rng(0)
    for number in range(200):
        pixels = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((36, 36), Image.Resampling.BICUBIC).save(place / "photos" / f"{number}.png")
    torch.manual_seed(0)
    network = create("resnet8", CLASSES).train()
    (images,) = next(iter(load(f"folder:{place / 'photos'}", size=32).loader("train", 200)))
    with torch.no_grad():
        for _ in range(30):
            network(images)  # batch norms see the photographs
        network.get_parameter("linear.bias").sub_(network.eval()(images).mean(0))  # and all classes are predicted
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, place / "w.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done = prunus("prune", NETWORK, *PHOTOS, *QUICK, "--target", "0.3", "--out", "run")
        assert done.exit_code == 0, done.stderr
        yield place


def answer(*words: str) -> dict[str, Any]:
    done = prunus(*words, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_quality_is_the_share_of_photographs_with_the_same_class(place: Path) -> None:
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["quality"] == {"name": "agreement with the original", "unit": "%"}
    original = create("resnet8", CLASSES)
    load_weights(original, place / "w.safetensors")
    small = pr.load(place / "run", create("resnet8", CLASSES))
    (images,) = next(iter(load(f"folder:{place / 'photos'}", size=32).loader("test", 64)))
    with torch.no_grad():
        same = [model.eval()(images).argmax(1) for model in (original, small)]
    share = float((same[0] == same[1]).float().mean())
    assert 0.2 < share < 1 and summary["after"]["test"]["quality"] == pytest.approx(share)
    for words in (["run"], ["resnet8=run", "--data", "folder:photos"]):
        found = answer("evaluate", *words, "--device", "cpu")
        assert found["quality"] == {"name": "agreement with the original", "unit": "%", "value": pytest.approx(share)}
    assert answer("report", "run")["finished"]
    page = (place / "run" / "report.html").read_text()
    assert "agreement with the original" in page.partition("All settings")[0]


def test_verbs_that_need_no_labels(place: Path) -> None:
    checked = answer("check", NETWORK, *PHOTOS)
    assert checked["problems"] == [] and checked["accuracy"] is None
    assert "the images have no labels: quality will be agreement with the original network" in checked["notes"]
    assert answer("inspect", "run")["layers"]["linear"]["outputs"] == CLASSES
    scored = answer("inspect", NETWORK, "--scores", "all", "--num-images", "40", *PHOTOS)["scores"]
    assert "rebuilt" in scored and "gsd" not in scored and "taylor" not in scored
    ranked = answer("inspect", NETWORK, "--sensitivity", "--num-images", "40", *PHOTOS)
    assert ranked["base_accuracy"] == 1 and min(unit["accuracy"] for unit in ranked["tried"].values()) < 1
    rows = answer(
        "study", "effectiveness", NETWORK, *PHOTOS, "--metrics", "l1,rebuilt", "--ratios", "0.5", "--repair", "none"
    )["rows"]
    assert {row["metric"] for row in rows} == {"l1", "rebuilt"} and min(row["accuracy"] for row in rows) < 100
    int8 = answer("export", "run", "small.onnx", "--int8", "--max-drop", "50", "--num-calibration", "32")
    assert int8["before"]["quality"] == 1 and 0.5 <= int8["after"]["quality"] <= 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("train resnet8", "folder:photos has no labels, and training needs them"),
        (f"evaluate {NETWORK}", "has no labels, and without them only a pruned network can be measured"),
        (f"show channels {NETWORK}", "has no labels: this needs one class per image"),
        (f"inspect {NETWORK} --scores gsd", "gsd needs labels, and the images have none: use one of"),
        (f"prune {NETWORK} --metric gsd --target 0.3 --out no", "gsd needs labels, and the images have none"),
        (f"prune {NETWORK} --paper --out no", "gsd needs labels, and the images have none"),
        (f"study timing {NETWORK}", "has no labels: this needs one class per image"),
        (f"study effectiveness {NETWORK} resnet20=w.safetensors", "does not fit"),
    ],
)
def test_verbs_that_need_labels(place: Path, line: str, complaint: str) -> None:
    found = prunus(*line.split(), *PHOTOS)
    assert found.exit_code == 1 and complaint in " ".join(found.stderr.split())
    assert not (place / "no").exists()


def make_net() -> nn.Module:
    network = create("resnet8", CLASSES)
    load_weights(network, "w.safetensors")
    return network


def make_data() -> dict[str, Any]:
    """Loaders that give tensors, not pairs."""
    parts = load("folder:photos", size=32)
    return {name: [images for (images,) in parts.loader(name, 32)] for name in ("train", "holdout", "test")}


def test_loaders_that_give_images_only(place: Path) -> None:
    module = "tests.cli.test_unlabelled"
    words = (f"{module}:make_net", "--data", f"{module}:make_data", "--device", "cpu")
    assert answer("check", *words)["accuracy"] is None
    done = answer("prune", *words, *QUICK, "--target", "0.3", "--out", "own")
    assert done["quality"]["name"] == "agreement with the original"
    assert answer("evaluate", "own", "--part", "holdout")["quality"]["value"] == done["after"]["holdout"]["quality"]


@functools.cache
def make_detector() -> nn.Module:
    return scenes.trained(steps=120)


def test_boxes_of_the_original_are_the_labels(place: Path) -> None:
    (place / "scenes").mkdir()
    for number, (pixels, _) in enumerate(scenes.drawn(60, seed=3)):
        Image.fromarray(pixels).save(place / "scenes" / f"{number:02d}.png")
    data = ("--data", "folder:scenes", "--size", "32", "--mean", "0", "--std", "1", "--holdout", "train:0.3")
    words = ("tests.cli.test_unlabelled:make_detector", "--task", "detection", *data, "--device", "cpu")
    done = answer("prune", *words, *QUICK, "--target", "0.3", "--out", "boxes")
    assert done["quality"] == {"name": "AP50-95 against the original", "unit": "%"}
    assert done["before"]["test"]["quality"] == 1
    # By hand: the original's sure boxes are the labels of the test images.
    original, small = make_detector(), pr.load(place / "boxes", make_detector())
    task = pr.detection()
    assert task.outputs is not None
    batches = []
    for (images,) in load("folder:scenes", size=32, labels="boxes", mean=(0.0,), std=(1.0,)).loader("test", 12):
        with torch.no_grad():
            sure = [found.above(0.25) for found in task.outputs(original(images)).images]
        batches.append((images, [{"boxes": each.boxes, "labels": each.labels} for each in sure]))
    by_hand = pr.evaluate(small, batches, task=task)
    assert 0.2 < by_hand.quality < 1
    assert done["after"]["test"]["quality"] == pytest.approx(by_hand.quality)
    assert answer("evaluate", "boxes")["quality"]["value"] == pytest.approx(by_hand.quality)
    table = json.loads((place / "boxes" / "classes.json").read_text())
    assert table["sizes"] == torch.cat([one["labels"] for _, labels in batches for one in labels]).bincount().tolist()
    assert (place / "boxes" / "boxes.png").exists() and answer("report", "boxes")["finished"]
