"""Batches of images from files, decoded in worker processes. A file that cannot be decoded is reported and skipped."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from secateur.errors import DataError
from secateur.zoo.data.images import FileImages
from secateur.zoo.data.loader import Batch, Loader, Order
from secateur.zoo.data.splits import IntArray

logger = logging.getLogger(__name__)

Pixels = npt.NDArray[np.uint8]
RESIZE_SHARE = 256 / 224  # the shorter side before the centre crop, relative to the crop
CROP_AREA = (0.08, 1.0)  # fraction of the image that a random crop covers
CROP_RATIO = (3 / 4, 4 / 3)  # its width over its height
CROP_TRIES = 10
MOST_CORRUPT, CORRUPT_SHARE = 20, 20  # by default 20 files of an epoch may be corrupt, and at most one in 20
SHOWN = 5  # corrupt files listed in an error


@dataclass(frozen=True)
class Decoded:
    """A batch from a worker: the decoded images, and the files that could not be decoded."""

    pixels: torch.Tensor  # [n, 3, size, size] uint8
    labels: torch.Tensor  # [n]
    corrupt: tuple[tuple[str, str], ...]  # (path, reason)


class BatchDecoder(Dataset[Decoded]):
    """Item i is the whole batch i. Its random numbers depend on i only, not on the worker that decodes it."""

    def __init__(self, images: FileImages, order: Order, epoch: int, size: int, augment: bool) -> None:
        self.images = images
        self.order = order
        self.epoch = epoch
        self.size = size
        self.augment = augment
        self.positions: IntArray = order.positions(epoch)

    def __len__(self) -> int:
        return self.order.batches

    def __getitem__(self, index: int) -> Decoded:
        rng, whole = self.order.rng(self.epoch, index), self.order.whole(index)
        # One generator per image, so that a corrupt file does not change the other crops.
        seeds = [rng.integers(2**63) for _ in range(whole)][self.order.share]
        pixels: list[Pixels] = []
        labels: list[int] = []
        corrupt: list[tuple[str, str]] = []
        positions = self.positions[index * self.order.batch_size : (index + 1) * self.order.batch_size]
        for position, seed in zip(positions, seeds, strict=True):
            path = self.images.paths[position]
            crop_rng = np.random.default_rng(seed)
            try:
                pixels.append(decode(path, self.size, crop_rng if self.augment else None))
                labels.append(int(self.images.labels[position]))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                corrupt.append((path, f"{type(error).__name__}: {error}"))
        stacked = np.stack(pixels) if pixels else np.zeros((0, 3, self.size, self.size), np.uint8)
        return Decoded(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.int64), tuple(corrupt))


class FileLoader(Loader):
    """Batches of images from files. Corrupt images are skipped and listed in `corrupt`: path -> reason."""

    def __init__(
        self,
        images: FileImages,
        order: Order,
        classes: tuple[str, ...],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        size: int,
        augment: bool,
        workers: int,
        max_corrupt: int | None,
    ) -> None:
        super().__init__(order, classes, mean, std)
        self.corrupt: dict[str, str] = {}
        self._images = images
        self._size = size
        self._augment = augment
        self._workers = workers
        # Of few images, a few corrupt ones are already many.
        default = min(MOST_CORRUPT, max(1, order.num_images // CORRUPT_SHARE))
        self._max_corrupt = default if max_corrupt is None else max_corrupt

    def _pixels(self, epoch: int, start: int) -> Iterator[Batch]:
        decoder = BatchDecoder(self._images, self.order, epoch, self._size, self._augment)
        batches: DataLoader[Decoded] = DataLoader(
            decoder,
            batch_size=None,
            sampler=range(start, len(self)),
            num_workers=self._workers,
            generator=torch.Generator(),  # DataLoader would draw from the global generator
        )
        corrupt: dict[str, str] = {}  # of this epoch
        try:
            for decoded in batches:
                corrupt.update(decoded.corrupt)
                if len(corrupt) > self._max_corrupt:
                    raise DataError(
                        f"{len(corrupt)} images cannot be decoded, and at most {self._max_corrupt} of "
                        f"{self.num_images} may be skipped; repair or delete them, or allow more with max_corrupt. "
                        f"The first ones: {_named(corrupt)}"
                    )
                if len(decoded.labels):
                    yield decoded.pixels, decoded.labels
        finally:
            if not corrupt.keys() <= self.corrupt.keys():  # each epoch skips the same files; once is enough
                logger.warning("skipped %d images that cannot be decoded: %s", len(corrupt), _named(corrupt))
            self.corrupt.update(corrupt)

    def _pixels_at(self, positions: IntArray) -> Batch:
        taken = Order(len(positions), len(positions))
        decoded = BatchDecoder(self._images.take(positions), taken, 0, self._size, augment=False)[0]
        return decoded.pixels, decoded.labels


def _named(corrupt: dict[str, str]) -> str:
    """The first few files with their reasons."""
    named = "; ".join(f"{path} ({reason})" for path, reason in list(corrupt.items())[:SHOWN])
    return f"{named}; ..." if len(corrupt) > SHOWN else named


def decode(path: str, size: int, rng: np.random.Generator | None) -> Pixels:
    """One RGB image [3, size, size]: a random crop, resized and possibly mirrored; the centre crop without `rng`."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    image = centre_crop(image, size) if rng is None else random_crop(image, size, rng)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to size * 256 / 224 and crop the central size x size pixels."""
    scale = round(size * RESIZE_SHARE) / min(image.size)
    width, height = (max(size, int(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def random_crop(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """A crop of random area and aspect ratio, resized to size x size and mirrored with probability 1/2."""
    left, top, width, height = crop_box(image.size, rng)
    image = image.crop((left, top, left + width, top + height))
    image = image.resize((size, size), Image.Resampling.BILINEAR)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def crop_box(image_size: tuple[int, int], rng: np.random.Generator) -> tuple[int, int, int, int]:
    """(left, top, width, height) of a random crop; the largest central crop of an allowed shape if none fits."""
    full_width, full_height = image_size
    for _ in range(CROP_TRIES):
        area = full_width * full_height * rng.uniform(*CROP_AREA)
        ratio = math.exp(rng.uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < width <= full_width and 0 < height <= full_height:
            left = int(rng.integers(0, full_width - width + 1))
            return left, int(rng.integers(0, full_height - height + 1)), width, height
    ratio = min(max(full_width / full_height, CROP_RATIO[0]), CROP_RATIO[1])
    width, height = min(full_width, round(full_height * ratio)), min(full_height, round(full_width / ratio))
    return (full_width - width) // 2, (full_height - height) // 2, width, height
