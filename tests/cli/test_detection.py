"""Detection on the command line: a folder of images with boxes, a network of the user's own, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from tests.cli.command_line import lines, prunus
from tests.tasks import scenes

SOURCE = """
from tests.tasks.scenes import Detector

def detector(num_classes=2):
    return Detector(num_classes)

detector.shape, detector.mean, detector.std = (3, 32, 32), 0.0, 1.0
"""
MODULE = "own_detector"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, a module with the network, and its trained weights."""
    place = tmp_path_factory.mktemp("detection")
    (place / f"{MODULE}.py").write_text(SOURCE)
    scenes.write_yolo(place / "scenes", {"train": 48, "val": 24})
    save_file(scenes.trained().state_dict(), place / "w.safetensors")
    return place


def test_evaluate_prune_and_the_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    task = ["--task", "detection", "--data", "folder:scenes/data.yaml"]
    network = [f"{MODULE}:detector", "--weights", "w.safetensors"]
    shown = lines(prunus("evaluate", *network, *task))
    quality = {line.split()[0]: line.split()[1] for line in shown if line.startswith("AP")}
    assert list(quality) == ["AP50-95", "AP50", "AP75"] and float(quality["AP50"].rstrip("%")) > 90
    goal = ["--target", "0.3", "--holdout", "train:0.25", "--no-timing", "--out", "run"]
    assert any("AP50-95" in line for line in lines(prunus("prune", *network, *task, *goal)))
    summary = json.loads((folder / "run" / "summary.json").read_text())
    measured = summary["before"]["test"]
    assert f"{100 * measured['quality']:.2f}%" == quality["AP50-95"] and measured["num_images"] == 24
    classes = json.loads((folder / "run" / "classes.json").read_text())
    assert (classes["names"], classes["sizes"], classes["of"]) == (["square", "bar"], [24, 24], "boxes")
    assert sum(classes["before"]["values"]) / 2 == pytest.approx(measured["quality"])
    page = (folder / "run" / "report.html").read_text()
    assert "AP50-95 of each class" in page and "Boxes before and after" in page
    with Image.open(folder / "run" / "boxes.png") as picture:
        assert picture.size == (4 * 286 - 6, 3 * 286 - 6)
        top = np.asarray(picture.convert("RGB"))[:280, :280]
    # The line of the first true box of the first image, in the colour of its class.
    with Image.open(folder / "scenes" / "images" / "val" / "000.png") as image:
        scale = 280 / image.width
    _, left, top_edge, right, _ = scenes.drawn(1, seed=2)[0][1][0]
    middle = top[round(top_edge * scale), round((left + right) / 2 * scale + 20)]
    assert middle.tolist() == [0xE6, 0x9F, 0x00]
    # The run remembers its task and data.
    assert lines(prunus("evaluate", "run"))[1].startswith("AP50-95")


def test_another_size_than_the_network_takes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    network = [f"{MODULE}:detector", "--weights", "w.safetensors"]
    wrong = prunus("evaluate", *network, "--task", "detection", "--data", "folder:scenes", "--size", "30")
    assert wrong.exit_code != 0 and "does not run on an image of 3 x 30 x 30" in wrong.output.replace("\n", " ")
    wrong = prunus("evaluate", *network, "--data", "folder:scenes")
    assert wrong.exit_code != 0 and "take the task detection" in wrong.output.replace("\n", " ")


def test_weights_for_other_classes_and_images_without_labels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    scenes.write_yolo(folder / "more", {"train": 24, "val": 4})
    listing = folder / "more" / "data.yaml"
    listing.write_text(listing.read_text().replace("bar]", "bar, disc]"))
    words = ["evaluate", f"{MODULE}:detector", "--weights", "w.safetensors", "--task", "detection", "--data"]
    wrong = prunus(*words, "folder:more")
    assert wrong.exit_code == 1 and "w.safetensors is for 2 classes, and the data have 3" in wrong.output
    for file in (folder / "more" / "labels" / "train").iterdir():
        file.unlink()
    wrong = prunus(*words, "folder:more")
    assert wrong.exit_code == 1 and "give a folder of images alone" in " ".join(wrong.output.split())
