"""Small files in the real formats, written here byte by byte, independently of the code that reads them."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from prunus.zoo.data import ImageData
from prunus.zoo.images import MemoryImages
from prunus.zoo.names import Part

Bytes = npt.NDArray[np.uint8]


def random_images(count: int, seed: int, shape: tuple[int, ...] = (3, 32, 32)) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def labels_of(count: int, classes: int) -> list[int]:
    return [(7 * index) % classes for index in range(count)]


class Bomb:
    """A pickle of it makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes as Python 2 wrote its strings, which is how CIFAR's batches are pickled."""

    def save_bytes(self, text: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch = {**pickle._Pickler.dispatch, bytes: save_bytes}  # type: ignore[attr-defined]  # noqa: RUF012


def python2_pickle(content: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(content)
    # numpy 2 calls its module numpy._core; the original files say numpy.core
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def python_batch(images: Bytes, labels: list[int], key: bytes = b"labels") -> bytes:
    return python2_pickle({b"batch_label": b"a batch", key: labels, b"data": images.reshape(len(images), -1)})


def idx(array: npt.NDArray[Any]) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
    return head + array.astype(np.uint8).tobytes()


def png_batch(images: Bytes) -> bytes:
    rows = images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)
    buffer = io.BytesIO()
    Image.fromarray(rows).save(buffer, "PNG")
    return buffer.getvalue()


class TinyCifar:
    """CIFAR-10 with 4 images a batch, in each of the ways it comes."""

    def __init__(self) -> None:
        self.batches = [random_images(4, seed) for seed in range(6)]
        self.labels = [[(seed + number) % 10 for number in range(4)] for seed in range(6)]
        self.train = np.concatenate(self.batches[:5])
        self.test = self.batches[5]
        self.train_labels = [label for labels in self.labels[:5] for label in labels]
        self.test_labels = self.labels[5]

    def named(self, suffix: str) -> list[str]:
        return [f"data_batch_{number}{suffix}" for number in range(1, 6)] + [f"test_batch{suffix}"]

    def python(self) -> dict[str, bytes]:
        return dict(zip(self.named(""), map(python_batch, self.batches, self.labels), strict=True))

    def png(self) -> dict[str, bytes]:
        files = dict(zip(self.named(".png"), map(png_batch, self.batches), strict=True))
        files["train_lables.json"] = json.dumps(self.train_labels).encode()
        files["test_lables.json"] = json.dumps(self.test_labels).encode()
        return files


class TinyMnist:
    def __init__(self) -> None:
        self.train = random_images(30, 1, (28, 28))
        self.test = random_images(20, 2, (28, 28))
        self.train_labels = labels_of(30, 10)
        self.test_labels = labels_of(20, 10)

    def idx(self) -> dict[str, bytes]:
        return {
            "train-images-idx3-ubyte": idx(self.train),
            "train-labels-idx1-ubyte": idx(np.array(self.train_labels)),
            "t10k-images-idx3-ubyte": idx(self.test),
            "t10k-labels-idx1-ubyte": idx(np.array(self.test_labels)),
        }

    def zipped(self) -> dict[str, bytes]:
        return {f"{name}.gz": gzip.compress(content) for name, content in self.idx().items()}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_tar(path: Path, files: dict[str, bytes], inside: str = "package") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_picture(path: Path, pixels: Bytes) -> Path:
    """pixels [H, W, 3]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write_tree(root: Path, counts: dict[str, int]) -> Path:
    """A folder of 40 x 40 pictures for each class."""
    seed = 0
    for name, count in counts.items():
        for number in range(count):
            seed += 1
            write_picture(root / name / f"{number}.png", random_images(1, seed, (40, 40, 3))[0])
    return root


def content(found: ImageData, part: Part) -> tuple[Bytes, list[int]]:
    """Pixels and labels of a part."""
    images = found.parts[part]
    assert isinstance(images, MemoryImages)
    return images.pixels.numpy()[images.rows], images.labels.tolist()


def assert_is_tiny(found: ImageData, tiny: TinyCifar | TinyMnist) -> None:
    for part, images, expected in (
        ("train", tiny.train, tiny.train_labels),
        ("test", tiny.test, tiny.test_labels),
    ):
        pixels, labels = content(found, part)  # type: ignore[arg-type]
        assert np.array_equal(pixels.reshape(images.shape), images) and labels == expected
