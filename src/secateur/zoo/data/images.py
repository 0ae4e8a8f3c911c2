"""Where images are kept: whole in memory as uint8, or as files that are decoded when they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.errors import DataError
from secateur.zoo.data.splits import IntArray

RESIZED_AT_ONCE = 4096  # images; keeps the float copies of a resize small


@dataclass(frozen=True, eq=False)
class MemoryImages:
    """Images that share one uint8 tensor; `rows` says which of its images are meant, so parts cost no memory."""

    pixels: Tensor  # [M, C, H, W] uint8
    rows: IntArray  # [N] positions in pixels
    labels: IntArray  # [N]

    @classmethod
    def whole(cls, pixels: Tensor, labels: IntArray) -> MemoryImages:
        """All images of a tensor."""
        return cls(pixels, np.arange(len(labels)), labels)

    def take(self, positions: IntArray) -> MemoryImages:
        """The images at some positions."""
        return replace(self, rows=self.rows[positions], labels=self.labels[positions])

    def resized(self, size: int) -> MemoryImages:
        """The same images of size x size pixels (bilinear, antialiased where they shrink)."""
        if tuple(self.pixels.shape[2:]) == (size, size):
            return self
        parts = []
        for start in range(0, len(self.pixels), RESIZED_AT_ONCE):
            chunk = self.pixels[start : start + RESIZED_AT_ONCE]
            shape = (size, size)
            scaled = F.interpolate(chunk.float(), shape, mode="bilinear", antialias=True, align_corners=False)
            parts.append(scaled.round_().clamp_(0, 255).to(torch.uint8))
        return replace(self, pixels=torch.cat(parts))


@dataclass(frozen=True, eq=False)
class FileImages:
    """Images in files of any size."""

    paths: tuple[str, ...]
    labels: IntArray  # [N]

    def take(self, positions: IntArray) -> FileImages:
        """The images at some positions."""
        return FileImages(tuple(self.paths[position] for position in positions), self.labels[positions])


Images = MemoryImages | FileImages


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set as it is read, before images are held out."""

    name: str
    classes: tuple[str, ...]
    train: Images | None
    test: Images | None
    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror: bool  # whether a mirrored image still shows its class: true of photographs, not of digits


def checked_labels(labels: IntArray, classes: int, path: str | Path) -> IntArray:
    """The labels, or a DataError when one of them names no class."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{path}: labels should lie in 0..{classes - 1}; {len(wrong)} do not, "
            f"the first is {int(labels[first])} at image {first}"
        )
    return labels


def checked_pair(pixels: Tensor, labels: IntArray, path: str | Path) -> None:
    """A DataError unless there are images, and a label for each."""
    if len(pixels) != len(labels):
        raise DataError(f"{path}: {len(pixels)} images, but {len(labels)} labels; there should be one for each image")
    if len(labels) == 0:
        raise DataError(f"{path}: holds no images")
