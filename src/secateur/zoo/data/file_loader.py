"""Batches of images from files, decoded in worker processes. A file that cannot be decoded is reported and skipped."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from secateur.errors import DataError
from secateur.zoo.data.decoding import CROP_AREA, LABELLED_AREA, Pixels, decode, decode_with_mask
from secateur.zoo.data.images import FileImages
from secateur.zoo.data.loader import Batch, Loader, Order
from secateur.zoo.data.splits import IntArray

logger = logging.getLogger(__name__)

MOST_CORRUPT, CORRUPT_SHARE = 20, 20  # by default 20 files of an epoch may be corrupt, and at most one in 20
SHOWN = 5  # corrupt files listed in an error


@dataclass(frozen=True)
class Decoded:
    """A batch from a worker: the decoded images, and the files that could not be decoded."""

    pixels: torch.Tensor  # [n, 3, size, size] uint8
    labels: torch.Tensor  # [n], [n, L] or, of masks, [n, size, size]
    corrupt: tuple[tuple[str, str], ...]  # (path, reason)
    wrong: str = ""  # a mask that cannot be used; said in the main process, where its type is not lost


class BatchDecoder(Dataset[Decoded]):
    """Item i is the whole batch i. Its random numbers depend on i only, not on the worker that decodes it."""

    def __init__(
        self, images: FileImages, order: Order, epoch: int, size: int, augment: bool, num_classes: int
    ) -> None:
        self.images = images
        self.order = order
        self.epoch = epoch
        self.size = size
        self.augment = augment
        self.num_classes = num_classes
        self.positions: IntArray = order.positions(epoch)

    def __len__(self) -> int:
        return self.order.batches

    def __getitem__(self, index: int) -> Decoded:
        rng, whole = self.order.rng(self.epoch, index), self.order.whole(index)
        # One generator per image, so that a corrupt file does not change the other crops.
        seeds = [rng.integers(2**63) for _ in range(whole)][self.order.share]
        pixels: list[Pixels] = []
        labels: list[npt.NDArray[np.int64]] = []
        corrupt: list[tuple[str, str]] = []
        positions = self.positions[index * self.order.batch_size : (index + 1) * self.order.batch_size]
        for position, seed in zip(positions, seeds, strict=True):
            crop_rng = np.random.default_rng(seed)
            try:
                image, label = self._image(position, crop_rng if self.augment else None)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                corrupt.append((self.images.paths[position], f"{type(error).__name__}: {error}"))
            except DataError as error:
                return Decoded(torch.zeros(0), torch.zeros(0), (), str(error))
            else:
                pixels.append(image)
                labels.append(label)
        stacked = np.stack(pixels) if pixels else np.zeros((0, 3, self.size, self.size), np.uint8)
        targets = np.stack(labels) if labels else np.zeros(0, np.int64)
        return Decoded(torch.from_numpy(stacked), torch.from_numpy(targets), tuple(corrupt))

    def _image(self, position: int, rng: np.random.Generator | None) -> tuple[Pixels, npt.NDArray[np.int64]]:
        """Pixels [3, size, size] and label of one image; a mask [size, size] is cropped like its image."""
        path, single = self.images.paths[position], self.images.labels.ndim == 1
        if self.images.masks:
            return decode_with_mask(path, self.images.masks[position], self.size, rng, self.num_classes)
        least = CROP_AREA[0] if single else LABELLED_AREA
        return decode(path, self.size, rng, least), np.asarray(self.images.labels[position], dtype=np.int64)


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
        decoder = BatchDecoder(self._images, self.order, epoch, self._size, self._augment, len(self.classes))
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
                if decoded.wrong:
                    raise DataError(decoded.wrong)
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
        decoded = BatchDecoder(self._images.take(positions), taken, 0, self._size, False, len(self.classes))[0]
        if decoded.wrong:
            raise DataError(decoded.wrong)
        return decoded.pixels, decoded.labels


def _named(corrupt: dict[str, str]) -> str:
    """The first few files with their reasons."""
    named = "; ".join(f"{path} ({reason})" for path, reason in list(corrupt.items())[:SHOWN])
    return f"{named}; ..." if len(corrupt) > SHOWN else named
