"""classes.json of tasks other than classification, without test images, and with an evaluation of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import jaccard_score
from torch import Tensor, nn

from prunus.run.compress import compress
from prunus.tasks.evaluate import Evaluation
from tests.run.toys import HOLDOUT, TRAIN, trained


def pixels(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Images whose three bands of brightness are the classes of their pixels."""
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 8, 8, generator=draw)
    return [(images, (3 * images[:, 0]).long().clamp(max=2))]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))


def test_segmentation_has_the_overlap_of_each_class(tmp_path: Path) -> None:
    holdout = pixels(6, seed=1)
    words: dict[str, Any] = {"task": "segmentation", "ratio": 0.4, "metric": "l1", "repair": "none", "epochs": 0}
    done = compress(network(), pixels(8, seed=0), holdout, folder=tmp_path, **words)
    found = json.loads((tmp_path / "classes.json").read_text())
    assert (found["part"], found["quality"], found["of"], found["names"]) == ("holdout", "IoU", "pixels", None)
    ((images, labels),) = holdout
    with torch.no_grad():
        said = done.model.eval()(images).argmax(1)
    wanted = jaccard_score(labels.flatten().numpy(), said.flatten().numpy(), average=None, zero_division=0)
    assert found["after"]["values"] == pytest.approx(wanted.tolist())
    assert found["sizes"] == torch.bincount(labels.flatten(), minlength=3).tolist()
    assert done.summary["after"]["holdout"]["top1"] == pytest.approx(wanted.mean())


def test_an_evaluation_of_ones_own_has_no_classes(tmp_path: Path) -> None:
    own = lambda model, loader: Evaluation(0.5, 0.0, 8)
    words: dict[str, Any] = {"ratio": 0.3, "metric": "l1", "repair": "none", "epochs": 0, "evaluate": own}
    compress(trained(), TRAIN, HOLDOUT, test=HOLDOUT, folder=tmp_path, **words)
    assert not (tmp_path / "classes.json").exists()
