"""Archives that hold a data set, decoded in memory: their members are never unpacked to disk."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image

from secateur.errors import DataError
from secateur.zoo.data import mnist
from secateur.zoo.data.cifar import LAYOUTS
from secateur.zoo.data.cifar_files import Files, Layout, read_layout
from secateur.zoo.data.images import MemoryImages, checked_labels, checked_pair

Pair = tuple[MemoryImages, MemoryImages]  # train, test
ShowStage = Callable[[str, int, int], None]  # stage, steps done, total number of steps (0: unknown)

PNG_BATCHES = (*(f"data_batch_{number}.png" for number in range(1, 6)), "test_batch.png")
PNG_LABELS = ("train_lables.json", "test_lables.json")  # the package spells it this way
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class ArchiveFormat:
    """A kind of archive: the files in it, and the function that reads them."""

    files: tuple[str, ...]
    read: Callable[[Files, str], Pair]


def _cifar_format(layout: Layout) -> ArchiveFormat:
    return ArchiveFormat(layout.files, lambda files, where: read_layout(layout, files, where))


def read_png_batches(files: Files, where: str) -> Pair:
    """CIFAR-10 as PNG pictures with one image in each row: [images, 1024 pixels, 3]."""
    train = [_png_rows(files[name], f"{where}/{name}") for name in PNG_BATCHES[:-1]]
    test = _png_rows(files[PNG_BATCHES[-1]], f"{where}/{PNG_BATCHES[-1]}")
    labels = [_json_labels(files[name], f"{where}/{name}") for name in PNG_LABELS]
    pixels = (torch.from_numpy(np.concatenate(train)), torch.from_numpy(test))
    for images, numbers, name in zip(pixels, labels, PNG_LABELS, strict=True):
        checked_pair(images, numbers, f"{where}/{name}")
    return MemoryImages.whole(pixels[0], labels[0]), MemoryImages.whole(pixels[1], labels[1])


def _png_rows(content: bytes, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        with Image.open(io.BytesIO(content)) as image:
            rows = np.asarray(image)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: is not a complete PNG picture ({error})") from error
    if rows.ndim != 3 or rows.shape[1:] != (1024, 3) or rows.dtype != np.uint8:
        raise DataError(f"{path}: expected rows of 1024 RGB pixels (one 32x32 image each), got {list(rows.shape)}")
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))  # [N, 3, 32, 32]


def _json_labels(content: bytes, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    try:
        labels = np.array(json.loads(content), dtype=np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{path}: expected a list of whole numbers ({error})") from error
    return checked_labels(labels.reshape(-1), 10, path)


FORMATS: dict[str, tuple[ArchiveFormat, ...]] = {
    "cifar10": (ArchiveFormat((*PNG_BATCHES, *PNG_LABELS), read_png_batches), *map(_cifar_format, LAYOUTS["cifar10"])),
    "cifar100": tuple(map(_cifar_format, LAYOUTS["cifar100"])),
    "mnist": (
        ArchiveFormat(mnist.FILES, mnist.read_idx),
        ArchiveFormat(
            tuple(f"{name}.gz" for name in mnist.FILES),
            lambda files, where: mnist.read_idx({name.removesuffix(".gz"): files[name] for name in files}, where),
        ),
    ),
}


def read_archive(name: str, path: Path, report: ShowStage) -> Pair:
    """The images of a tar archive (compressed or not) that holds data set `name` in a known format."""
    formats = FORMATS[name]
    wanted = {file for known_format in formats for file in known_format.files}
    files = _members(path, wanted, report)
    for known_format in formats:
        if all(file in files for file in known_format.files):
            report(f"decoding {name}", 0, 0)
            return known_format.read({file: files[file] for file in known_format.files}, str(path))
    known = "; or ".join(", ".join(known_format.files) for known_format in formats)
    raise DataError(
        f"{path}: is not an archive of {name}: expected the files {known}; found {sorted(files) or 'none of them'}"
    )


def _members(path: Path, wanted: set[str], report: ShowStage) -> dict[str, bytes]:
    """The wanted files, by bare name, in one pass over the archive."""
    if not path.is_file():
        raise DataError(f"{path}: this archive does not exist")
    found: dict[str, bytes] = {}
    try:
        size = path.stat().st_size
        with path.open("rb") as raw, tarfile.open(fileobj=raw) as archive:
            for member in archive:
                bare = PurePosixPath(member.name).name
                if bare not in wanted or not member.isfile():
                    continue
                opened = archive.extractfile(member)
                found[bare] = opened.read() if opened else b""
                report(f"unpacking {path.name} (MB)", raw.tell() // MEGABYTE, size // MEGABYTE)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: is not a complete tar archive ({type(error).__name__}: {reason})") from error
    return found


def archive_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(MEGABYTE):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return digest.hexdigest()


def content_sha256(train: MemoryImages, test: MemoryImages) -> str:
    """SHA-256 of the decoded data set: images and labels (one byte each), train first, then test.

    It does not depend on the archive that the images came in.
    """
    digest = hashlib.sha256()
    for images in (train, test):
        digest.update(images.pixels[torch.from_numpy(images.rows)].contiguous().numpy().data)
        digest.update(images.labels.astype(np.uint8).data)
    return digest.hexdigest()
