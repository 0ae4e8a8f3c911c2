"""Data sets in three disjoint parts, where they are looked for, and the real ones that are here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prunus.zoo import data
from prunus.zoo.images import MemoryImages
from prunus.zoo.names import Part
from tests.zoo.formats import content

PARTS: tuple[Part, ...] = ("train", "holdout", "test")


def rows(found: data.ImageData, part: Part) -> set[int]:
    images = found.parts[part]
    assert isinstance(images, MemoryImages)
    return set(images.rows.tolist())


def test_held_out_images() -> None:
    train, holdout, test = (rows(data.load("digits", holdout="train:0.1"), part) for part in PARTS)
    assert [len(part) for part in (train, holdout, test)] == [1294, 144, 359]  # 1797 = 359 + 1438; 144 = round(143.8)
    assert len(train | holdout | test) == 1797
    other = data.load("digits", holdout="train:0.1", seed=1)
    assert rows(other, "holdout") != holdout and rows(other, "test") == test
    halves, whole = data.load("digits", holdout="test:0.5"), data.load("digits", holdout="none")
    train, holdout, left = (rows(halves, part) for part in PARTS)
    assert (len(train), len(holdout), len(left)) == (1438, 180, 179)
    assert holdout | left == test == rows(whole, "test") and not holdout & left
    assert [whole.count(part) for part in PARTS] == [1438, 0, 359]
    assert whole.has("train") and not whole.has("holdout") and whole.example().shape == (1, 1, 8, 8)
    parts = "1,438 train, 180 holdout, 179 test"
    assert repr(halves) == f"ImageData(digits: images of 1 x 8 x 8, 10 classes; {parts})"
    loader = halves.loader("train", 64, shuffle=True)  # 1438 = 22 x 64 + 30
    assert repr(loader) == "Loader(1,438 images in 23 batches of 64, shuffled)"


def test_mean_and_deviation_can_be_overridden() -> None:
    usual = next(iter(data.load("digits").loader("test", 4)))[0]
    other = next(iter(data.load("digits", mean=(0.5,), std=(0.25,)).loader("test", 4)))[0]
    assert torch.allclose((usual * 0.3761 + 0.3053 - 0.5) / 0.25, other, atol=1e-5)


def test_where_sets_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRUNUS_DATA", str(tmp_path))
    assert data.roots() == (tmp_path,)
    assert data.roots("there") == (Path("there"),)
    monkeypatch.delenv("PRUNUS_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.roots() == (Path("data"), tmp_path / ".cache/prunus/data")


# Published counts: the first labels of CIFAR-10's data_batch_1 and MNIST's training set, and images for each class.
REAL: dict[str, dict[str, Any]] = {
    "digits": {"counts": (1438, 359), "classes": [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]},
    "cifar10": {"counts": (50000, 10000), "classes": [6000] * 10, "first": [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]},
    "mnist": {
        "counts": (60000, 10000),
        "classes": [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958],
        "first": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
    },
}


def test_the_real_sets_that_are_here_have_their_published_counts_mean_and_deviation() -> None:
    here = ["digits", *(name for name in ("cifar10", "mnist") if data.locate(name))]
    for name in here:
        found = data.load(name, holdout="none")
        train, train_labels = content(found, "train")
        _, test_labels = content(found, "test")
        expected = REAL[name]
        assert (len(train_labels), len(test_labels)) == expected["counts"]
        assert np.bincount(train_labels + test_labels).tolist() == expected["classes"]
        assert train_labels[: len(expected.get("first", []))] == expected.get("first", [])
        levels = np.arange(256) / 255
        for channel, (mean, std) in enumerate(zip(found.mean, found.std, strict=True)):
            shares = np.bincount(train[:, channel].ravel(), minlength=256) / train[:, channel].size
            assert shares @ levels == pytest.approx(mean, abs=0.005)
            assert np.sqrt(shares @ (levels - shares @ levels) ** 2) == pytest.approx(std, abs=0.005)
