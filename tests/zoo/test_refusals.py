"""What is refused, and what is said: names, files in the wrong format, folders, arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from prunus.errors import DataError, ModelError
from prunus.zoo import data, models
from prunus.zoo.networks import IMAGENET, register
from tests.zoo.formats import (
    TinyCifar,
    TinyMnist,
    idx,
    python2_pickle,
    python_batch,
    random_images,
    write_files,
    write_tree,
)

TWO = random_images(2, 0)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (python_batch(TWO, [3, 10]), r"must lie in 0\.\.9; 1 do not, the first is 10 at image 1"),
        (python_batch(TWO, [3]), "2 images but 1 labels"),
        (python_batch(TWO[:, :, :28, :28], [3, 4]), r"uint8 array \[N, 3072\].*uint8 \[2, 2352\]"),
        (python2_pickle({b"labels": [1]}), r"`data` must be a uint8 array \[N, 3072\].* got NoneType"),
        (python2_pickle({b"data": TWO.reshape(2, -1)}), "`labels` must be a list"),
        (TinyCifar().python()["data_batch_2"][:5000], "is not a complete Python batch"),
    ],
)
def test_python_batches(tmp_path: Path, batch: bytes, said: str) -> None:
    write_files(tmp_path, {**TinyCifar().python(), "data_batch_2": batch})
    with pytest.raises(DataError, match=f"{tmp_path / 'data_batch_2'}: .*{said}"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("t10k-labels-idx1-ubyte", lambda whole: whole[:-1], r"expected 28 bytes for the shape \[20\], got 27"),
        ("t10k-labels-idx1-ubyte", lambda whole: whole[:6], "the header needs 8 bytes, but the file has 6"),
        ("t10k-labels-idx1-ubyte", lambda whole: whole[:-1] + b"\x0a", r"labels must lie in 0\.\.9"),
        ("t10k-labels-idx1-ubyte", lambda whole: idx(np.zeros(19)), "20 images but 19 labels"),
        ("t10k-images-idx3-ubyte", lambda whole: b"GIF89a", "starts with 00 00 08, this one with 47 49 46"),
        ("t10k-images-idx3-ubyte", lambda whole: b"\x1f\x8b" + whole, "is not a complete gzip file"),
        ("t10k-images-idx3-ubyte", lambda whole: idx(np.zeros((20, 32, 32))), r"got \[20, 32, 32\]"),
    ],
)
def test_idx_files(tmp_path: Path, name: str, change: Callable[[bytes], bytes], said: str) -> None:
    files = TinyMnist().idx()
    write_files(tmp_path, {**files, name: change(files[name])})
    with pytest.raises(DataError, match=f"{tmp_path / name}: .*{said}"):
        data.load("mnist", tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"missing: {name}"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("spec", "arguments", "said"),
    [
        ("cifar10", {}, "cifar10 was not found in .*nowhere; run `prunus data cifar10`"),
        ("cifar11", {}, "there is no data set called 'cifar11': did you mean cifar10 or cifar100"),
        ("digits:here", {}, "there is no data set called 'digits:here'"),
        ("folder", {}, "folder needs the path of the images: folder:PATH"),
        ("folder:TMP/no", {}, "no: this folder of images does not exist"),
        ("folder:TMP/empty", {}, "expected one folder per class, or images without labels; found neither"),
        ("folder:TMP/gap", {}, "b: has no images"),
        ("folder:TMP/parts", {}, "these folders are not classes of the training images: c"),
        ("imagenet:TMP/gap", {}, "gap: expected a folder val of ILSVRC-2012"),
        ("imagenet:TMP/flat", {}, "move each image into a folder of its wnid, or give"),
        ("digits", {"size": 0}, "size must be at least 1 pixel"),
        ("digits", {"mean": (0.5, 0.5, 0.5)}, "mean must be one finite number, got"),
        ("digits", {"std": (0.0,)}, "std must be one finite positive number, got"),
        ("digits", {"labels": "masks"}, "digits has one class per image; for segmentation take folder:PATH"),
        ("digits", {"holdout": "test:0.0001"}, "test:0.0001 of 359 images are 0 held-out images"),
    ],
)
def test_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("PRUNUS_DATA", str(tmp_path / "nowhere"))
    write_tree(tmp_path / "gap", {"a": 2})
    write_tree(tmp_path / "parts", {"train/a": 1, "train/b": 1, "val/c": 1})
    write_tree(tmp_path / "flat", {"train/a": 1, "val": 1})
    for empty in ("empty", "gap/b"):
        (tmp_path / empty).mkdir()
    with pytest.raises(DataError, match=said):
        data.load(spec.replace("TMP", str(tmp_path)), **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"rank": 2, "world": 2}, r"rank must lie in 0\.\.1"),
        ({"seed": -1}, "seed at least 0; got 128 and -1"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"part": "holdout"}, r"digits has no holdout images; it has train \(1438\), test \(359\)"),
    ],
)
def test_loaders(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        data.load("digits", holdout="none").loader(**{"part": "train", **arguments})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("resnet55", {}, r"there is no model called 'resnet55': did you mean resnet56.*; also torchvision:NAME"),
        (":net", {}, "one side of the colon is empty"),
        ("lenet5", {"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ("lenet5", {"depth": 3}, r"lenet5: cannot be built with \{'depth': 3\}"),
        ("resnet20", {"depth": 21}, r"depth must be 6n \+ 2 with an integer n >= 1, got 21"),
        ("preresnet164", {"depth": 20 + 1}, r"depth must be 9n \+ 2"),
    ],
)
def test_networks(name: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        models.create(name, **arguments)


def test_a_name_that_is_taken() -> None:
    with pytest.raises(ModelError, match="'lenet5' is registered twice"):
        register("lenet5", IMAGENET, "")(lambda: nn.Identity())
