"""What a run looks at before it works, and runs on images without labels. What it refuses: test_refusals.py."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import prunus as pr
from prunus.report.run_page import write_report
from tests.run.toys import HOLDOUT, TEST, TRAIN, trained
from tests.tasks.nets import UNet, squares


def without_labels(pairs: Any) -> list[torch.Tensor]:
    return [images for images, _ in pairs]


@pytest.mark.parametrize(
    "goal",
    [
        {"target": 0.5},
        {"ratio": 0.3, "repair": "none"},
        {"max_drop": 20, "split": "algorithm1", "alpha": 2, "repair": "bn"},
        {"params": 4000, "epochs": 1, "lr": 0.01},
        {"target": 0.3, "rounds": 1, "repair": "none", "metric": "rebuilt", "split": "algorithm1"},
    ],
)
def test_a_run_without_labels(goal: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, folder = trained(), tmp_path / "run"
    parts = {"train": without_labels(TRAIN), "holdout": without_labels(HOLDOUT), "test": [{"image": TEST[0][0]}]}
    result = pr.compress(model, **parts, folder=folder, **goal)
    assert "the held-out images have no labels: quality is agreement with the original" in caplog.messages
    assert result.summary["quality"] == {"name": "agreement with the original", "unit": "%"}
    assert result.summary["before"]["holdout"]["quality"] == 1
    with torch.no_grad():
        same = [(model.eval()(x).argmax(1) == result.model.eval()(x).argmax(1)).float() for x in parts["holdout"]]
        same_test = (model(TEST[0][0]).argmax(1) == result.model(TEST[0][0]).argmax(1)).float()
    assert result.summary["after"]["holdout"]["quality"] == pytest.approx(float(torch.cat(same).mean()))
    assert result.summary["after"]["test"]["quality"] == pytest.approx(float(same_test.mean()))
    assert "held-out agreement with the original" in repr(result)
    page = write_report(folder).read_text()
    results, _, settings = page.partition("All settings")  # whose help is that of all tasks
    assert "agreement with the original" in results and "ccuracy" not in results and settings
    assert "prunus.compress(model, train, holdout" in page and "task=" not in page
    assert result.summary["removed"]["macs"] > 0
    # The same arguments read the finished run again.
    assert pr.compress(model, **parts, folder=folder, **goal).summary["after"] == result.summary["after"]


def test_another_task_without_labels() -> None:
    torch.manual_seed(0)
    model = UNet().eval()
    result = pr.compress(
        model, squares(32, labels=False), squares(16, seed=1, labels=False), task="segmentation", ratio=0.3
    )
    assert 0.3 < result.summary["after"]["holdout"]["quality"] < 1
    assert result.summary["settings"]["task"] == "segmentation without labels"


def test_the_same_images_twice_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*TRAIN, strict=True)))
    half, other = range(96), range(96, 192)
    for loaders, said in (
        ({"holdout": TRAIN}, ["train and holdout are the same images: decisions need images"]),
        ({"test": HOLDOUT}, ["holdout and test are the same images: figures on images that decided are too good"]),
        (
            {"train": DataLoader(data, 16, shuffle=True), "holdout": DataLoader(data, 32)},
            ["train and holdout are the same images"],
        ),
        (
            {
                "train": DataLoader(data, 16, sampler=SubsetRandomSampler(half)),
                "holdout": DataLoader(data, 16, sampler=SubsetRandomSampler(other)),
            },
            [],
        ),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "prunus.run.first_look"):
            pr.compress(
                trained(), **{"train": TRAIN, "holdout": HOLDOUT, **loaders}, ratio=0.3, repair="none", metric="l1"
            )
        found = [record.message for record in caplog.records if record.name == "prunus.run.first_look"]
        assert len(found) == len(said) and all(a in b for a, b in zip(said, found, strict=True))
