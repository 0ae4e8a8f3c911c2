"""Images in memory as uint8, or in files that are decoded when they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.errors import DataError
from secateur.zoo.data.splits import IntArray

RESIZED_AT_ONCE = 4096  # number of images; limits the memory of their float copies


@dataclass(frozen=True, eq=False)
class MemoryImages:
    """Images of one uint8 tensor. `rows` selects some of them, so that parts share the tensor's memory."""

    pixels: Tensor  # [M, C, H, W] uint8
    rows: IntArray  # [N] positions in pixels
    labels: IntArray  # [N]

    @property
    def strata(self) -> IntArray:
        """The class of each image; samples and parts keep the share of each."""
        return self.labels

    @classmethod
    def whole(cls, pixels: Tensor, labels: IntArray) -> MemoryImages:
        """All images of a tensor."""
        return cls(pixels, np.arange(len(labels)), labels)

    def take(self, positions: IntArray) -> MemoryImages:
        """The images at these positions."""
        return replace(self, rows=self.rows[positions], labels=self.labels[positions])

    def resized(self, size: int) -> MemoryImages:
        """The same images with size x size pixels (bilinear, with antialiasing)."""
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
    """Images in files of any size. Each has a class, several labels, or a mask with the class of each pixel."""

    paths: tuple[str, ...]
    labels: IntArray  # classes [N], all 0 if there are masks; or [N, L]: 0 or 1 for each of L labels
    masks: tuple[str, ...] = ()  # files

    @property
    def strata(self) -> IntArray:
        """The class of each image; samples and parts keep the share of each. All 0 without one class per image."""
        return self.labels if self.labels.ndim == 1 else np.zeros(len(self.labels), dtype=np.int64)

    def take(self, positions: IntArray) -> FileImages:
        """The images at these positions."""
        paths, masks = (tuple(f[p] for p in positions) if f else () for f in (self.paths, self.masks))
        return FileImages(paths, self.labels[positions], masks)


Images = MemoryImages | FileImages


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set as it was read, before images are held out."""

    name: str
    classes: tuple[str, ...]
    train: Images | None
    test: Images | None
    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror: bool  # whether a mirrored image still shows its class: True for photographs, False for digits


def checked_labels(labels: IntArray, classes: int, path: str | Path) -> IntArray:
    """The labels, or a DataError if one of them is not a class."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{path}: labels must lie in 0..{classes - 1}; {len(wrong)} do not, "
            f"the first is {int(labels[first])} at image {first}"
        )
    return labels


def checked_pair(pixels: Tensor, labels: IntArray, path: str | Path) -> None:
    """Raise a DataError unless there are images, and one label for each."""
    if len(pixels) != len(labels):
        raise DataError(f"{path}: {len(pixels)} images but {len(labels)} labels; expected one label for each image")
    if len(labels) == 0:
        raise DataError(f"{path}: has no images")
