"""Decoded images in one safetensors file: quick to open, and nothing in it can run."""

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
    """What the file of a set is called."""
    return f"{name}.safetensors"


def write(path: Path, name: str, train: MemoryImages, test: MemoryImages) -> None:
    """Write both parts to `path`. Whoever calls moves the file into place once it is whole."""
    tensors = {}
    for part, images in (("train", train), ("test", test)):
        tensors[f"{part}.images"] = images.pixels[torch.from_numpy(images.rows)].contiguous()
        tensors[f"{part}.labels"] = torch.from_numpy(images.labels.astype(np.uint8))
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, {"format": FORMAT, "name": name})
    path.chmod(mode)  # as the user's umask has it; save_file would keep the file from everybody else


def read(path: Path, name: str, classes: int) -> tuple[MemoryImages, MemoryImages]:
    """Training and test images of a file that `write` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("format") != FORMAT or (file.metadata() or {}).get("name") != name:
                raise DataError(
                    f"{path}: not {name} as `secateur data get {name}` writes it; delete it and get it again"
                )
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: not a whole safetensors file ({error}); delete it and get it again") from error
    parts = []
    for part in ("train", "test"):
        pixels = tensors[f"{part}.images"]  # [N, C, H, W] uint8
        labels = checked_labels(tensors[f"{part}.labels"].numpy().astype(np.int64), classes, path)
        checked_pair(pixels, labels, path)
        parts.append(MemoryImages.whole(pixels, labels))
    return parts[0], parts[1]
