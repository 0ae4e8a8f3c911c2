"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the names and places of their files, and their classes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from prunus.errors import DataError
from prunus.zoo import images as stored_images
from prunus.zoo.images import ImageSet, MemoryImages, checked_labels, checked_pair, divide

# CIFAR's own files: binary batches and Python batches. The unpickler of the latter accepts nothing but arrays.

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
Files = Mapping[str, bytes]  # name -> content


@dataclass(frozen=True)
class Layout:
    """File names and format of one version of a CIFAR data set."""

    folder: str
    train: tuple[str, ...]
    test: str
    classes: int
    decode: Callable[[bytes, str, Layout], tuple[Any, Any]]
    label_key: bytes = b""  # Python batches
    label_bytes: int = 0  # binary batches; the last of these bytes is the label

    @property
    def files(self) -> tuple[str, ...]:
        """All file names, training files first."""
        return (*self.train, self.test)


def read_layout(layout: Layout, files: Files, where: str) -> tuple[MemoryImages, MemoryImages]:
    """Training and test images from the contents of the files."""
    train = [layout.decode(files[name], f"{where}/{name}", layout) for name in layout.train]
    test = [layout.decode(files[layout.test], f"{where}/{layout.test}", layout)]
    return _joined(train), _joined(test)


def _joined(batches: list[tuple[Any, Any]]) -> MemoryImages:
    pixels = np.concatenate([pixels for pixels, _ in batches])  # [N, 3, 32, 32]
    return MemoryImages.whole(torch.from_numpy(pixels), np.concatenate([labels for _, labels in batches]))


def decode_python(content: bytes, path: str, layout: Layout) -> tuple[Any, Any]:
    """One Python batch: a pickled dict of `data` uint8 [N, 3072] and a list of labels."""
    try:
        found = ArraysOnly(io.BytesIO(content), path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path}: is not a complete Python batch ({type(error).__name__}: {error})") from error
    data = found.get(b"data") if isinstance(found, dict) else None
    labels = found.get(layout.label_key) if isinstance(found, dict) else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        came = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{path}: `data` must be a uint8 array [N, {PIXELS}] (32x32 RGB images), got {came}")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"{path}: `{layout.label_key.decode()}` must be a list of whole numbers, and is not")
    if len(labels) != len(data):
        raise DataError(f"{path}: {len(data)} images but {len(labels)} labels; expected one label for each image")
    return data.reshape(-1, *SHAPE), checked_labels(np.array(labels, dtype=np.int64), layout.classes, path)


def decode_binary(content: bytes, path: str, layout: Layout) -> tuple[Any, Any]:
    """One binary batch: records of one or two label bytes and 3,072 bytes of pixels."""
    record = layout.label_bytes + PIXELS
    if not content or len(content) % record:
        raise DataError(
            f"{path}: expected records of {record:,} bytes, but the file has {len(content):,} bytes; "
            "it is truncated or has another format"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    labels = records[:, layout.label_bytes - 1].astype(np.int64)
    pixels = records[:, layout.label_bytes :].reshape(-1, *SHAPE)
    return pixels, checked_labels(labels, layout.classes, path)


class ArraysOnly(pickle.Unpickler):
    """An unpickler for numpy arrays, numbers, text, lists and dicts. It refuses everything else."""

    def __init__(self, file: io.BytesIO, path: str) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """The three classes that a pickled array needs, and the function with which Python 3 writes bytes."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _empty_array
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _number_type
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise DataError(
            f"{self._path}: the pickle asks for {module}.{name}. Only arrays are accepted, because a pickle can "
            "run any code; none of it was run. Use the original file"
        )


def _empty_array(kind: Any, shape: Any, code: Any) -> Any:
    """The same as numpy's `_reconstruct`: an array that the pickled state then fills."""
    if kind is not np.ndarray:
        raise ValueError("not a plain array")
    return np.ndarray.__new__(np.ndarray, (0,), np.uint8)


def _number_type(code: Any, *_: Any) -> np.dtype[Any]:
    text = code.decode("ascii") if isinstance(code, bytes) else str(code)
    found = np.dtype(text)
    if found.kind not in "iuf":
        raise ValueError(f"an array of {text!r}, not of numbers")
    return found


def _latin1(text: Any, codec: Any = b"latin1") -> bytes:
    if codec not in (b"latin1", "latin1"):
        raise ValueError(f"bytes written with codec {codec!r}")
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-batches-py", _FIVE, "test_batch", 10, decode_python, label_key=b"labels"),
        Layout(
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in _FIVE),
            "test_batch.bin",
            10,
            decode_binary,
            label_bytes=1,
        ),
    ),
    "cifar100": (
        Layout("cifar-100-python", ("train",), "test", 100, decode_python, label_key=b"fine_labels"),
        Layout("cifar-100-binary", ("train.bin",), "test.bin", 100, decode_binary, label_bytes=2),
    ),
}
_FINE = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel "
    "can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
    "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
    "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree "
    "pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea "
    "seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank "
    "telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CLASSES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    "cifar100": tuple(_FINE.split()),
}
MEAN = {"cifar10": (0.4914, 0.4822, 0.4465), "cifar100": (0.5071, 0.4865, 0.4409)}
STD = {"cifar10": (0.2470, 0.2435, 0.2616), "cifar100": (0.2673, 0.2564, 0.2762)}


def locate(name: str, roots: tuple[Path, ...]) -> Path | None:
    """The file (as `prunus data get` writes it) or folder (as the official archives unpack) that holds the set."""
    for place in (place for root in roots for place in (root, root / name)):
        stored = place / stored_images.filename(name)
        if stored.is_file():
            return stored
        for layout in LAYOUTS[name]:
            for folder in (place / layout.folder, place):
                if (folder / layout.test).is_file():
                    return folder
    return None


def read(name: str, found: Path) -> ImageSet:
    """Read the data set that `locate` found."""
    if found.is_file():
        train, test = stored_images.read(found, name, len(CLASSES[name]))
    else:
        train, test = _read_folder(name, found)
    return ImageSet(name, CLASSES[name], train, test, SHAPE, MEAN[name], STD[name], mirror=True)


def _read_folder(name: str, folder: Path) -> tuple[MemoryImages, MemoryImages]:
    layout = next(layout for layout in LAYOUTS[name] if (folder / layout.test).is_file())
    missing = [file for file in layout.files if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder}: expected the files of {name}: {', '.join(layout.files)}; missing: {', '.join(missing)}"
        )
    return read_layout(layout, {file: (folder / file).read_bytes() for file in layout.files}, str(folder))


# MNIST (LeCun et al. 1998) in its idx files, plain or gzipped.

CLASSES_MNIST = tuple(str(digit) for digit in range(10))
SHAPE_MNIST = (1, 28, 28)
MEAN_MNIST = (0.1307,)
STD_MNIST = (0.3081,)
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
UNSIGNED_BYTES = 0x08  # the idx code of MNIST's element type


def locate_mnist(roots: tuple[Path, ...]) -> Path | None:
    """The file (as `prunus data get` writes it) or the folder with the four idx files."""
    for place in (place for root in roots for place in (root, root / "mnist", root / "MNIST" / "raw")):
        stored = place / stored_images.filename("mnist")
        if stored.is_file():
            return stored
        if any(_file(place, name) is not None for name in FILES):
            return place
    return None


def read_mnist(found: Path) -> ImageSet:
    """Read the data set that `locate` found."""
    if found.is_file():
        train, test = stored_images.read(found, "mnist", len(CLASSES_MNIST))
    else:
        paths = {name: _file(found, name) for name in FILES}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise DataError(
                f"{found}: expected the four idx files of MNIST, plain or .gz; missing: {', '.join(missing)}"
            )
        train, test = read_idx({name: path.read_bytes() for name, path in paths.items() if path}, str(found))
    return ImageSet("mnist", CLASSES_MNIST, train, test, SHAPE_MNIST, MEAN_MNIST, STD_MNIST, mirror=False)


def read_idx(files: Mapping[str, bytes], where: str) -> tuple[MemoryImages, MemoryImages]:
    """Training and test images from the contents of the four files."""
    return _pair(files, FILES[0], FILES[1], where), _pair(files, FILES[2], FILES[3], where)


def _pair(files: Mapping[str, bytes], images: str, labels: str, where: str) -> MemoryImages:
    pixels = parse_idx(files[images], f"{where}/{images}")
    if pixels.ndim != 3 or pixels.shape[1:] != SHAPE_MNIST[1:]:
        raise DataError(f"{where}/{images}: images should be [N, 28, 28], got {list(pixels.shape)}")
    numbers = parse_idx(files[labels], f"{where}/{labels}")
    if numbers.ndim != 1:
        raise DataError(f"{where}/{labels}: labels should be [N], got {list(numbers.shape)}")
    tensor = torch.from_numpy(pixels.copy()).unsqueeze(1)  # [N, 1, 28, 28]
    checked = checked_labels(numbers.astype(np.int64), len(CLASSES_MNIST), f"{where}/{labels}")
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


# The 8x8 digits of scikit-learn: 1,797 real images that need no download.

CLASSES_DIGITS = tuple(str(digit) for digit in range(10))
TEST_SHARE = 0.2
TEST_SEED = 0  # fixed: the test images do not change with the seed of a run


def read_digits() -> ImageSet:
    """All digits; a fixed, stratified fifth of them is the test set."""
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = np.rint(found.images * (255 / 16)).astype(np.uint8)  # [N, 8, 8]; values in the file are 0..16
    labels = found.target.astype(np.int64)
    images = MemoryImages.whole(torch.from_numpy(grey).unsqueeze(1), labels)
    test, train = divide(labels, TEST_SHARE, TEST_SEED)
    return ImageSet(
        name="digits",
        classes=CLASSES_DIGITS,
        train=images.take(train),
        test=images.take(test),
        shape=(1, 8, 8),
        mean=(0.3053,),
        std=(0.3761,),
        mirror=False,
    )


# Archives that hold a data set, decoded in memory: their members are never unpacked to disk.

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
        ArchiveFormat(FILES, read_idx),
        ArchiveFormat(
            tuple(f"{name}.gz" for name in FILES),
            lambda files, where: read_idx({name.removesuffix(".gz"): files[name] for name in files}, where),
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
