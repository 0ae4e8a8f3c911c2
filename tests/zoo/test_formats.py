"""The files of CIFAR-10, CIFAR-100 and MNIST, small but in the real formats; hostile ones too."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from prunus.errors import DataError
from prunus.zoo import data
from tests.zoo import formats
from tests.zoo.formats import Bomb, TinyCifar, TinyMnist, assert_is_tiny, content, python2_pickle, write_files


@pytest.mark.parametrize(
    ("name", "inside", "kind"),
    [
        *(("cifar10", inside, "python") for inside in ("", "cifar-10-batches-py", "cifar10/cifar-10-batches-py")),
        ("cifar10", "", "png"),
        *(("mnist", inside, "idx") for inside in ("", "mnist", "MNIST/raw")),
        ("mnist", "", "zipped"),
    ],
)
def test_files_in_every_format_and_place(tmp_path: Path, name: str, inside: str, kind: str) -> None:
    tiny = TinyCifar() if name == "cifar10" else TinyMnist()
    write_files(tmp_path / inside, getattr(tiny, kind)())
    assert_is_tiny(data.load(name, tmp_path, holdout="none"), tiny)
    assert_is_tiny(data.load(f"{name}:{tmp_path}", holdout="none"), tiny)
    assert data.load(name, tmp_path, size=16).shape[1:] == (16, 16)


def test_batches_pickled_again_by_python_3(tmp_path: Path) -> None:
    tiny = TinyCifar()
    batches = zip(tiny.named(""), tiny.batches, tiny.labels, strict=True)
    for protocol, (name, images, labels) in enumerate(batches, 0):
        batch = {b"data": images.reshape(4, -1), b"labels": labels}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=min(protocol, 4)))
    assert_is_tiny(data.load("cifar10", tmp_path, holdout="none"), TinyCifar())


def test_cifar100_has_fine_labels(tmp_path: Path) -> None:
    images = {"train": formats.random_images(9, 1), "test": formats.random_images(5, 2)}
    labels = {"train": [99, 0, 17, 3, 4, 5, 6, 7, 8], "test": [50, 60, 70, 80, 90]}
    for part in ("train", "test"):
        coarse = [label // 5 for label in labels[part]]
        pixels = images[part].reshape(-1, 3072)
        batch = python2_pickle({b"data": pixels, b"fine_labels": labels[part], b"coarse_labels": coarse})
        write_files(tmp_path / "cifar-100-python", {part: batch})
    found = data.load("cifar100", tmp_path, holdout="none")
    for name in ("train", "test"):
        pixels, numbers = content(found, name)  # type: ignore[arg-type]
        assert np.array_equal(pixels, images[name]) and numbers == labels[name]


def test_a_pickle_that_tries_to_import_anything_is_refused_and_does_not_run(tmp_path: Path) -> None:
    images = formats.random_images(4, 0).reshape(4, -1)
    for bomb in (Bomb(tmp_path / "was_here"), np.array([Bomb(tmp_path / "was_here")], dtype=object), pickle.Unpickler):
        batch = python2_pickle({b"data": images, b"labels": [0, 1, 2, 3], b"x": bomb})
        write_files(tmp_path, {**TinyCifar().python(), "data_batch_2": batch})
        with pytest.raises(DataError, match=r"batch_2: .*(Only arrays are accepted|is not a complete Python batch)"):
            data.load("cifar10", tmp_path)
        assert not (tmp_path / "was_here").exists()
