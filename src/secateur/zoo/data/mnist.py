"""MNIST (LeCun et al. 1998) in its idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from secateur.errors import DataError
from secateur.zoo.data import stored_images
from secateur.zoo.data.images import ImageSet, MemoryImages, checked_labels, checked_pair

CLASSES = tuple(str(digit) for digit in range(10))
SHAPE = (1, 28, 28)
MEAN = (0.1307,)
STD = (0.3081,)
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UNSIGNED_BYTES = 0x08  # the idx code of MNIST's element type


def locate(roots: tuple[Path, ...]) -> Path | None:
    """The file (as `secateur data get` writes it) or the folder with the four idx files."""
    for place in (place for root in roots for place in (root, root / "mnist", root / "MNIST" / "raw")):
        stored = place / stored_images.filename("mnist")
        if stored.is_file():
            return stored
        if any(_file(place, name) is not None for name in FILES):
            return place
    return None


def read(found: Path) -> ImageSet:
    """Read the data set that `locate` found."""
    if found.is_file():
        train, test = stored_images.read(found, "mnist", len(CLASSES))
    else:
        paths = {name: _file(found, name) for name in FILES}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise DataError(
                f"{found}: expected the four idx files of MNIST, plain or .gz; missing: {', '.join(missing)}"
            )
        train, test = read_idx({name: path.read_bytes() for name, path in paths.items() if path}, str(found))
    return ImageSet("mnist", CLASSES, train, test, SHAPE, MEAN, STD, mirror=False)


def read_idx(files: Mapping[str, bytes], where: str) -> tuple[MemoryImages, MemoryImages]:
    """Training and test images from the contents of the four files."""
    return _pair(files, FILES[0], FILES[1], where), _pair(files, FILES[2], FILES[3], where)


def _pair(files: Mapping[str, bytes], images: str, labels: str, where: str) -> MemoryImages:
    pixels = parse_idx(files[images], f"{where}/{images}")
    if pixels.ndim != 3 or pixels.shape[1:] != SHAPE[1:]:
        raise DataError(f"{where}/{images}: images should be [N, 28, 28], got {list(pixels.shape)}")
    numbers = parse_idx(files[labels], f"{where}/{labels}")
    if numbers.ndim != 1:
        raise DataError(f"{where}/{labels}: labels should be [N], got {list(numbers.shape)}")
    tensor = torch.from_numpy(pixels.copy()).unsqueeze(1)  # [N, 1, 28, 28]
    checked = checked_labels(numbers.astype(np.int64), len(CLASSES), f"{where}/{labels}")
    checked_pair(tensor, checked, f"{where}/{labels}")
    return MemoryImages.whole(tensor, checked)


def parse_idx(content: bytes, path: str) -> npt.NDArray[np.uint8]:
    """An idx array: two zero bytes, element type, number of axes, the axes as big-endian uint32, the elements."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: is not a complete gzip file ({error})") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES:
        raise DataError(
            f"{path}: an idx file of unsigned bytes starts with 00 00 08, this one with {content[:3].hex(' ')}"
        )
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError(f"{path}: the header needs {start} bytes, but the file has {len(content)}")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    size = math.prod(shape)
    if len(content) - start != size:
        raise DataError(f"{path}: expected {start + size:,} bytes for the shape {list(shape)}, got {len(content):,}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _file(folder: Path, name: str) -> Path | None:
    candidates = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((folder / candidate for candidate in candidates if (folder / candidate).is_file()), None)
