"""The files of CIFAR-10, CIFAR-100 and MNIST, small but in the real formats; hostile ones too."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prunus.errors import DataError
from prunus.zoo import data
from tests.zoo import formats
from tests.zoo.formats import TinyCifar, TinyMnist, assert_is_tiny, content, python2_pickle, write_files


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_cifar10_python_batches(tmp_path: Path, inside: str) -> None:
    write_files(tmp_path / inside, TinyCifar().python())
    found = data.load("cifar10", tmp_path, holdout="none")
    assert_is_tiny(found, TinyCifar())
    assert (found.shape, found.classes[3]) == ((3, 32, 32), "cat")
    assert_is_tiny(data.load(f"cifar10:{tmp_path}", holdout="none"), TinyCifar())


@pytest.mark.parametrize(("inside", "kind"), [("cifar-10-batches-bin", "binary"), ("", "png")])
def test_cifar10_in_other_formats(tmp_path: Path, inside: str, kind: str) -> None:
    write_files(tmp_path / inside, getattr(TinyCifar(), kind)())
    assert_is_tiny(data.load("cifar10", tmp_path, holdout="none"), TinyCifar())


def test_batches_pickled_again_by_python_3(tmp_path: Path) -> None:
    tiny = TinyCifar()
    batches = zip(tiny.named(""), tiny.batches, tiny.labels, strict=True)
    for protocol, (name, images, labels) in enumerate(batches, 0):
        batch = {b"data": images.reshape(4, -1), b"labels": labels}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=min(protocol, 4)))
    assert_is_tiny(data.load("cifar10", tmp_path, holdout="none"), TinyCifar())


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_cifar100_has_fine_labels(tmp_path: Path, kind: str) -> None:
    images = {"train": formats.random_images(9, 1), "test": formats.random_images(5, 2)}
    labels = {"train": [99, 0, 17, 3, 4, 5, 6, 7, 8], "test": [50, 60, 70, 80, 90]}
    for part in ("train", "test"):
        if kind == "python":
            batch = python2_pickle(
                {
                    b"data": images[part].reshape(-1, 3072),
                    b"fine_labels": labels[part],
                    b"coarse_labels": [label // 5 for label in labels[part]],
                }
            )
            write_files(tmp_path / "cifar-100-python", {part: batch})
        else:
            batch = formats.binary_batch(images[part], labels[part], coarse=True)
            write_files(tmp_path / "cifar-100-binary", {f"{part}.bin": batch})
    found = data.load("cifar100", tmp_path, holdout="none")
    for name in ("train", "test"):
        pixels, numbers = content(found, name)  # type: ignore[arg-type]
        assert np.array_equal(pixels, images[name])
        assert numbers == labels[name]


@pytest.mark.parametrize("inside", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_idx_files(tmp_path: Path, inside: str, zipped: bool) -> None:
    tiny = TinyMnist()
    write_files(tmp_path / inside, tiny.zipped() if zipped else tiny.idx())
    assert_is_tiny(data.load("mnist", tmp_path, holdout="none"), tiny)
    assert data.load("mnist", tmp_path, size=32).shape == (1, 32, 32)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_tries_to_import_anything_is_refused_and_does_not_run(tmp_path: Path) -> None:
    images = formats.random_images(4, 0).reshape(4, -1)
    for bomb in (Bomb(tmp_path / "was_here"), np.array([Bomb(tmp_path / "was_here")], dtype=object), pickle.Unpickler):
        batch = python2_pickle({b"data": images, b"labels": [0, 1, 2, 3], b"x": bomb})
        write_files(tmp_path, {**TinyCifar().python(), "data_batch_2": batch})
        with pytest.raises(DataError, match=r"batch_2: .*(Only arrays are accepted|is not a complete Python batch)"):
            data.load("cifar10", tmp_path)
        assert not (tmp_path / "was_here").exists()
