"""Images in memory as uint8, or in files that are decoded when they are needed; samples and crops of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import DataError
from prunus.util.batches import drawn, shares

IntArray = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
RESIZED_AT_ONCE = 4096  # number of images; limits the memory of their float copies


def stratified(labels: IntArray, count: int, seed: int) -> IntArray:
    """The sorted positions of `count` images, drawn at random with the same share of each class."""
    if not 0 <= count <= len(labels):
        raise DataError(f"cannot take {count} of {len(labels)} images")
    return drawn(labels, shares(np.bincount(labels), count), seed)


def divide(labels: IntArray, share: float, seed: int) -> tuple[IntArray, IntArray]:
    """Sorted positions (taken, rest): a stratified `share` of the images, and the others."""
    taken = stratified(labels, round(len(labels) * share), seed)
    return taken, np.setdiff1d(np.arange(len(labels)), taken)


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
        for chunk in torch.split(self.pixels, RESIZED_AT_ONCE):
            scaled = F.interpolate(chunk.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
            parts.append(scaled.round_().clamp_(0, 255).to(torch.uint8))
        return replace(self, pixels=torch.cat(parts))


@dataclass(frozen=True, eq=False)
class FileImages:
    """Images in files of any size. Each has a class, several labels, a mask with the class of each pixel, or boxes."""

    paths: tuple[str, ...]
    labels: IntArray  # classes [N], all 0 if there are masks or boxes; or [N, L]: 0 or 1 for each of L labels
    masks: tuple[str, ...] = ()  # files
    boxes: tuple[npt.NDArray[np.float64], ...] = ()  # [n, 6] each, see `prunus.zoo.boxes`
    sizes: tuple[tuple[int, int], ...] = ()  # width and height of each image, where the labels say them

    @property
    def strata(self) -> IntArray:
        """The class of each image; samples and parts keep the share of each. All 0 without one class per image."""
        return self.labels if self.labels.ndim == 1 else np.zeros(len(self.labels), dtype=np.int64)

    def take(self, positions: IntArray) -> FileImages:
        """The images at these positions."""

        def some(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[place] for place in positions) if values else ()

        return FileImages(
            some(self.paths), self.labels[positions], some(self.masks), some(self.boxes), some(self.sizes)
        )


Images = MemoryImages | FileImages
AnyImages = TypeVar("AnyImages", MemoryImages, FileImages)
TEST_SHARE, TEST_SEED = 0.2, 0  # fixed: the test images do not change with the seed of a run


def split_off_test(images: AnyImages) -> tuple[AnyImages, AnyImages]:
    """Training images, and a fixed, stratified fifth of all images as test images."""
    test, train = divide(images.strata, TEST_SHARE, TEST_SEED)
    return images.take(train), images.take(test)


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


# Image files, and masks with the class of each pixel, decoded and cropped to squares of equal size.

RESIZE_SHARE = 256 / 224  # the shorter side before the centre crop, relative to the crop
CROP_AREA = (0.08, 1.0)  # fraction of the image that a random crop covers
LABELLED_AREA = 0.5  # the least fraction where several labels or a mask must still be true of the crop
CROP_RATIO = (3 / 4, 4 / 3)  # its width over its height
CROP_TRIES = 10
IGNORED = 255  # in a mask: the pixel does not count
INDEX_MODES = ("1", "L", "P", "I", "I;16")  # of images that hold one number for each pixel


def decode(path: str, size: int, rng: np.random.Generator | None, least: float = CROP_AREA[0]) -> Pixels:
    """One RGB image [3, size, size]: a random crop, resized and possibly mirrored; the centre crop without `rng`.

    The centre crop resizes the shorter side to size * 256 / 224 and takes the central size x size pixels.
    least: the smallest fraction of the image that a random crop covers.
    """
    image = open_rgb(path)
    if rng is not None:
        return channels_first(_view(rng, image.size, least)(image, size, Image.Resampling.BILINEAR))
    scale = round(size * RESIZE_SHARE) / min(image.size)
    width, height = (max(size, int(side * scale)) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return channels_first(resized.crop((left, top, left + size, top + size)))


def decode_with_mask(
    path: str, mask: str, size: int, rng: np.random.Generator | None, num_classes: int
) -> tuple[Pixels, IntArray]:
    """An image [3, size, size] and the class of each of its pixels [size, size].

    Both are resized as a whole, or cropped and mirrored alike with `rng`: the image bilinearly, the mask to the nearest
    pixel, so that no class is mixed from two others.
    """
    image, indices = open_rgb(path), read_mask(mask)
    if indices.shape != (image.height, image.width):
        height, width = indices.shape
        raise DataError(
            f"{mask}: the mask has {width} x {height} pixels, and its image {path} has {image.width} x {image.height}; "
            "both must have the same size"
        )
    wrong = np.unique(indices[((indices < 0) | (indices >= num_classes)) & (indices != IGNORED)])
    if len(wrong):
        raise DataError(
            f"{mask}: there are {num_classes} classes, 0 to {num_classes - 1}, and only {IGNORED} is ignored; the mask "
            f"has {', '.join(map(str, wrong[:5]))}{', ...' if len(wrong) > 5 else ''}"
        )
    view = _view(rng, image.size, LABELLED_AREA)
    pixels = view(image, size, Image.Resampling.BILINEAR)
    classes = view(Image.fromarray(indices), size, Image.Resampling.NEAREST)
    return channels_first(pixels), np.asarray(classes).astype(np.int64)


def read_mask(path: str) -> npt.NDArray[np.int32]:
    """The class indices of a mask [H, W]. A palette is not looked up: its indices are the classes."""
    with Image.open(path) as opened:
        if opened.mode not in INDEX_MODES:
            raise DataError(
                f"{path}: expected a mask with one class index per pixel (a grey or palette PNG), got the mode "
                f"{opened.mode}, which holds colours: replace each colour by the number of its class"
            )
        if opened.format == "JPEG":
            raise DataError(f"{path}: JPEG changes the numbers of pixels, so it cannot hold a mask: save it as PNG")
        return np.asarray(opened).astype(np.int32)


def crop_box(
    image_size: tuple[int, int], rng: np.random.Generator, least: float = CROP_AREA[0]
) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a random crop; the largest central crop of an allowed shape if none fits."""
    full_width, full_height = image_size
    for _ in range(CROP_TRIES):
        area = full_width * full_height * rng.uniform(least, CROP_AREA[1])
        ratio = math.exp(rng.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= full_width and 0 < height <= full_height:
            left = int(rng.integers(0, full_width - width + 1))
            return left, int(rng.integers(0, full_height - height + 1)), width, height
    ratio = min(max(full_width / full_height, CROP_RATIO[0]), CROP_RATIO[1])
    width, height = min(full_width, round(full_height * ratio)), min(full_height, round(full_width / ratio))
    return (full_width - width) // 2, (full_height - height) // 2, width, height


def _view(
    rng: np.random.Generator | None, image_size: tuple[int, int], least: float
) -> Callable[[Image.Image, int, Image.Resampling], Image.Image]:
    """A function that crops, resizes and mirrors images of this size in one random way; without `rng`, only resizes."""
    left, top, width, height = (0, 0, *image_size) if rng is None else crop_box(image_size, rng, least)
    mirrored = rng is not None and rng.random() < 0.5

    def view(image: Image.Image, size: int, how: Image.Resampling) -> Image.Image:
        image = image.crop((left, top, left + width, top + height)).resize((size, size), how)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image

    return view


def open_rgb(path: str) -> Image.Image:
    with Image.open(path) as opened:
        return opened.convert("RGB")


def channels_first(image: Image.Image) -> Pixels:
    """The pixels of an image, [3, height, width]."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
