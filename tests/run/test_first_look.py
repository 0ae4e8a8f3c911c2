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
from prunus.run.context import RunData
from prunus.run.first_look import look_first
from tests.run.toys import HOLDOUT, TEST, TRAIN, trained
from tests.tasks.nets import UNet, squares


@pytest.mark.parametrize(
    "goal",
    [
        {"target": 0.5},
        {"max_drop": 20, "split": "algorithm1", "alpha": 4, "repair": "bn", "metric": "rebuilt"},
        {"ratio": 0.3, "repair": "none", "epochs": 1, "lr": 0.01},
    ],
)
def test_a_run_without_labels(goal: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, folder = trained(), tmp_path / "run"
    train, holdout = ([images for images, _ in pairs] for pairs in (TRAIN, HOLDOUT))
    parts: dict[str, Any] = {"train": train, "holdout": holdout, "test": [{"image": TEST[0][0]}], "timing": False}
    result = pr.compress(model, **parts, folder=folder, **goal)
    assert "the held-out images have no labels: quality is agreement with the original" in caplog.messages
    assert result.summary["quality"] == {"name": "agreement with the original", "unit": "%"}
    assert result.summary["before"]["holdout"]["quality"] == 1 and result.summary["removed"]["macs"] > 0
    for part, images in (("holdout", torch.cat(holdout)), ("test", TEST[0][0])):
        with torch.no_grad():
            same = model.eval()(images).argmax(1) == result.model.eval()(images).argmax(1)
        assert result.summary["after"][part]["quality"] == pytest.approx(float(same.float().mean()))
    assert "test agreement with the original" in repr(result)
    page = write_report(folder).read_text()
    results, _, settings = page.partition("All settings")  # whose help is that of all tasks
    assert "agreement with the original" in results and "ccuracy" not in results and settings
    assert "prunus.compress(model, train, holdout" in page and "task=" not in page
    # The same arguments read the finished run again.
    assert pr.compress(model, **parts, folder=folder, **goal).summary["after"] == result.summary["after"]


def test_another_task_without_labels() -> None:
    torch.manual_seed(0)
    loaders = squares(32, labels=False), squares(16, seed=1, labels=False)
    result = pr.compress(UNet().eval(), *loaders, task="segmentation", ratio=0.3, timing=False)
    assert 0.3 < result.summary["after"]["holdout"]["quality"] < 1
    assert result.summary["settings"]["task"] == "segmentation without labels"


def test_the_same_images_twice_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*TRAIN, strict=True)))
    halves = [DataLoader(data, 16, sampler=SubsetRandomSampler(range(i, 192, 2))) for i in (0, 1)]
    for train, holdout, test, said in (
        (TRAIN, TRAIN, None, ["train and holdout are the same images: decisions need images"]),
        (TRAIN, HOLDOUT, HOLDOUT, ["holdout and test are the same images: figures on images that decided are too"]),
        (DataLoader(data, 16, shuffle=True), DataLoader(data, 32), None, ["train and holdout are the same images"]),
        (*halves, None, []),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "prunus.run.first_look"):
            look_first(trained(), RunData(train, train, holdout, test), pr.Settings(ratio=0.3))
        assert len(caplog.messages) == len(said)
        assert all(message.startswith(start) for message, start in zip(caplog.messages, said, strict=True))
