"""CIFAR's own files: binary batches and Python batches. The unpickler of the latter accepts nothing but arrays."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from secateur.errors import DataError
from secateur.zoo.data.images import MemoryImages, checked_labels

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
