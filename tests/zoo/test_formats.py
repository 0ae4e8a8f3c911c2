"""The files of CIFAR-10, CIFAR-100 and MNIST, small but in the real formats; damaged, foreign and hostile ones too."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prunus.errors import DataError
from prunus.zoo import data
from prunus.zoo.images import MemoryImages, Part
from prunus.zoo.names import DATA_SETS
from tests.zoo import formats
from tests.zoo.formats import TinyCifar, TinyMnist, python2_pickle, python_batch, write_files


def content(found: data.ImageData, part: Part) -> tuple[np.ndarray, list[int]]:
    images = found.parts[part]
    assert isinstance(images, MemoryImages)
    return images.pixels.numpy()[images.rows], images.labels.tolist()


def assert_is_tiny_cifar(found: data.ImageData) -> None:
    tiny = TinyCifar()
    pixels, labels = content(found, "train")
    assert np.array_equal(pixels, tiny.train)
    assert labels == tiny.train_labels
    pixels, labels = content(found, "test")
    assert np.array_equal(pixels, tiny.test)
    assert labels == tiny.test_labels


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_cifar10_python_batches(tmp_path: Path, inside: str) -> None:
    write_files(tmp_path / inside, TinyCifar().python())
    found = data.load("cifar10", tmp_path, holdout="none")
    assert_is_tiny_cifar(found)
    assert (found.shape, found.classes[3]) == ((3, 32, 32), "cat")
    assert_is_tiny_cifar(data.load(f"cifar10:{tmp_path}", holdout="none"))


def test_cifar10_binary_batches(tmp_path: Path) -> None:
    write_files(tmp_path / "cifar-10-batches-bin", TinyCifar().binary())
    assert_is_tiny_cifar(data.load("cifar10", tmp_path, holdout="none"))


def test_batches_pickled_again_by_python_3(tmp_path: Path) -> None:
    tiny = TinyCifar()
    batches = zip(tiny.named(""), tiny.batches, tiny.labels, strict=True)
    for protocol, (name, images, labels) in enumerate(batches, 0):
        batch = {b"data": images.reshape(4, -1), b"labels": labels}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=min(protocol, 4)))
    assert_is_tiny_cifar(data.load("cifar10", tmp_path, holdout="none"))


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


def test_class_names_are_the_official_ones_in_alphabetical_order() -> None:
    fine = DATA_SETS["cifar100"].classes
    assert len(fine) == len(set(fine)) == 100
    assert list(fine) == sorted(fine)
    assert (fine[0], fine[49], fine[99]) == ("apple", "mountain", "worm")
    assert all(len(known.classes) in (0, known.num_classes) for known in DATA_SETS.values())


@pytest.mark.parametrize("inside", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_idx_files(tmp_path: Path, inside: str, zipped: bool) -> None:
    tiny = TinyMnist()
    write_files(tmp_path / inside, tiny.zipped() if zipped else tiny.idx())
    found = data.load("mnist", tmp_path, holdout="none")
    pixels, labels = content(found, "train")
    assert np.array_equal(pixels[:, 0], tiny.train)
    assert labels == tiny.train_labels
    pixels, labels = content(found, "test")
    assert np.array_equal(pixels[:, 0], tiny.test)
    assert labels == tiny.test_labels
    assert data.load("mnist", tmp_path, size=32).shape == (1, 32, 32)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def with_batch(folder: Path, content: bytes, name: str = "data_batch_2") -> Path:
    write_files(folder, {**TinyCifar().python(), name: content})
    return folder / name


def test_a_pickle_that_tries_to_import_anything_is_refused_and_does_not_run(tmp_path: Path) -> None:
    images = formats.random_images(4, 0).reshape(4, -1)
    for bomb in (Bomb(tmp_path / "was_here"), np.array([Bomb(tmp_path / "was_here")], dtype=object), pickle.Unpickler):
        path = with_batch(tmp_path, python2_pickle({b"data": images, b"labels": [0, 1, 2, 3], b"x": bomb}))
        with pytest.raises(DataError, match=f"{path}: .*(Only arrays are accepted|is not a complete Python batch)"):
            data.load("cifar10", tmp_path)
        assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize("length", [0, 1, 100, 5000, 12000])
def test_a_truncated_python_batch(tmp_path: Path, length: int) -> None:
    path = with_batch(tmp_path, TinyCifar().python()["data_batch_2"][:length])
    with pytest.raises(DataError, match=f"{path}: is not a complete Python batch"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            python_batch(formats.random_images(2, 0), [3, 10]),
            r"must lie in 0\.\.9; 1 do not, the first is 10 at image 1",
        ),
        (python_batch(formats.random_images(2, 0), [3, -1]), r"the first is -1 at image 1"),
        (python_batch(formats.random_images(2, 0), [3]), "2 images but 1 labels"),
        (python_batch(formats.random_images(2, 0, (3, 28, 28)), [3, 4]), r"uint8 array \[N, 3072\].*uint8 \[2, 2352\]"),
        (python2_pickle({b"labels": [1]}), r"`data` must be a uint8 array \[N, 3072\].* got NoneType"),
        (python2_pickle({b"data": formats.random_images(1, 0).reshape(1, -1)}), "`labels` must be a list"),
        (python2_pickle([1, 2]), "`data` must be a uint8 array"),
    ],
)
def test_python_batches_that_hold_something_else(tmp_path: Path, batch: bytes, said: str) -> None:
    path = with_batch(tmp_path, batch)
    with pytest.raises(DataError, match=f"{path}: .*{said}"):
        data.load("cifar10", tmp_path)


def test_a_truncated_binary_batch_and_a_missing_one(tmp_path: Path) -> None:
    files = TinyCifar().binary()
    write_files(tmp_path, {**files, "data_batch_3.bin": files["data_batch_3.bin"][:-1]})
    with pytest.raises(DataError, match=r"data_batch_3\.bin: expected records of 3,073 bytes, but the file has 12,291"):
        data.load("cifar10", tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"missing: data_batch_4\.bin"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("t10k-labels-idx1-ubyte", lambda whole: whole[:-1], r"expected 28 bytes for the shape \[20\], got 27"),
        ("t10k-labels-idx1-ubyte", lambda whole: whole[:6], "the header needs 8 bytes, but the file has 6"),
        ("t10k-labels-idx1-ubyte", lambda whole: whole[:-1] + b"\x0a", r"labels must lie in 0\.\.9"),
        ("t10k-labels-idx1-ubyte", lambda whole: formats.idx(np.zeros(19)), "20 images but 19 labels"),
        ("t10k-images-idx3-ubyte", lambda whole: b"GIF89a", "starts with 00 00 08, this one with 47 49 46"),
        ("t10k-images-idx3-ubyte", lambda whole: b"\x1f\x8b" + whole, "is not a complete gzip file"),
        ("t10k-images-idx3-ubyte", lambda whole: formats.idx(np.zeros((20, 32, 32))), r"got \[20, 32, 32\]"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, name: str, change: Any, said: str) -> None:
    files = TinyMnist().idx()
    write_files(tmp_path, {**files, name: change(files[name])})
    with pytest.raises(DataError, match=f"{tmp_path / name}: .*{said}"):
        data.load("mnist", tmp_path)


def test_an_idx_file_that_is_missing(tmp_path: Path) -> None:
    write_files(tmp_path, TinyMnist().idx())
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="missing: train-labels-idx1-ubyte"):
        data.load("mnist", tmp_path)


def test_names_that_are_wrong_or_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRUNUS_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(
        DataError, match=f"cifar10 was not found in {tmp_path / 'nowhere'}; run `prunus data get cifar10`"
    ):
        data.load("cifar10")
    with pytest.raises(DataError, match="there is no data set called 'cifar11': did you mean cifar10 or cifar100"):
        data.load("cifar11")
    with pytest.raises(DataError, match=r"folder needs the path of the images: folder:PATH"):
        data.load("folder")
    with pytest.raises(DataError, match="size must be at least 1 pixel"):
        data.load("digits", size=0)


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
