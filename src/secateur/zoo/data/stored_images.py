"""Decoded images in one safetensors file, which opens quickly and cannot contain code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from secateur.errors import DataError
from secateur.zoo.data.images import MemoryImages, checked_labels, checked_pair

FORMAT = "secateur-images-1"


def filename(name: str) -> str:
    """The file name of a data set."""
    return f"{name}.safetensors"


def write(path: Path, name: str, train: MemoryImages, test: MemoryImages) -> None:
    """Write both parts to `path`. The caller moves the complete file into place."""
    tensors = {}
    for part, images in (("train", train), ("test", test)):
        tensors[f"{part}.images"] = images.pixels[torch.from_numpy(images.rows)].contiguous()
        tensors[f"{part}.labels"] = torch.from_numpy(images.labels.astype(np.uint8))
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, {"format": FORMAT, "name": name})
    path.chmod(mode)  # follow the user's umask; save_file lets only the owner read the file


def read(path: Path, name: str, classes: int) -> tuple[MemoryImages, MemoryImages]:
    """Training and test images of a file that `write` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != FORMAT or (file.metadata() or {}).get("name") != name:
                raise DataError(
                    f"{path}: was not written by `secateur data get {name}`; delete it and run that command"
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: is not a complete safetensors file ({error}); delete it and get it again") from error
    parts = []
    for part in ("train", "test"):
        pixels = tensors[f"{part}.images"]  # [N, C, H, W] uint8
        labels = checked_labels(tensors[f"{part}.labels"].numpy().astype(np.int64), classes, path)
        checked_pair(pixels, labels, path)
        parts.append(MemoryImages.whole(pixels, labels))
    return parts[0], parts[1]
