"""Batches of normalised float images and labels. Their order depends only on (seed, epoch, batch index)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secateur.errors import DataError
from secateur.zoo.data.augment import pad_crop_mirror
from secateur.zoo.data.images import MemoryImages
from secateur.zoo.data.splits import IntArray

Batch = tuple[Tensor, Tensor]  # images, labels


@dataclass(frozen=True)
class Order:
    """Assigns images to batches. Each of `world` processes has its own `rank` and gets its own images.

    Shuffled batches are for training: every process gets the same number of images (up to world - 1 images are skipped
    in an epoch), and a last batch of one image is skipped, because batch norm cannot train on it. Unshuffled batches
    are for evaluation: every image comes exactly once.
    """

    total: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise DataError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world:
            raise DataError(f"rank must lie in 0..{self.world - 1} (world {self.world}), got {self.rank}")
        if self.seed < 0:
            raise DataError(f"seed must be at least 0, got {self.seed}")

    @property
    def num_images(self) -> int:
        """Number of images of this process in an epoch."""
        if not self.shuffle:
            return len(range(self.rank, self.total, self.world))
        share = self.total // self.world
        alone = share > 1 and self.batch_size > 1 and share % self.batch_size == 1
        return share - 1 if alone else share

    @property
    def batches(self) -> int:
        """Number of batches of this process in an epoch."""
        return -(-self.num_images // self.batch_size)

    def positions(self, epoch: int) -> IntArray:
        """Positions of this process's images in their order [num_images]."""
        order = np.arange(self.total)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.total)
        return order[self.share][: self.num_images]

    def rng(self, epoch: int, batch: int) -> np.random.Generator:
        """The random generator of one batch, the same in all processes; it does not depend on the batches before."""
        return np.random.default_rng([self.seed, epoch, batch, 0])

    def whole(self, batch: int) -> int:
        """Number of images in a batch over all processes. Images `self.share` of them are this process's.

        Random numbers are drawn for all of them, so that an image gets the same, however many processes share a batch.
        """
        size, images = self.batch_size * self.world, self.num_images * self.world if self.shuffle else self.total
        return min(size, images - batch * size)

    @property
    def share(self) -> slice:
        """Which images of a whole batch are this process's."""
        return slice(self.rank, None, self.world)


class Loader(ABC):
    """An iterable of (images float32 [N, C, H, W], labels int64 [N]); `set_epoch` shuffles them anew."""

    def __init__(self, order: Order, classes: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.order = order
        self.classes = classes
        self.epoch = 0
        # (p / 255 - mean) / std == p * scale + shift: one multiplication and one addition per pixel
        deviation, centre = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (std, mean))
        self._scale = (1 / (255 * deviation)).float()  # [1, C, 1, 1]
        self._shift = (-centre / deviation).float()  # [1, C, 1, 1]

    @property
    def num_images(self) -> int:
        """Number of images of this process in an epoch."""
        return self.order.num_images

    @property
    def batch_size(self) -> int:
        """Number of images in a batch; the last batch may be smaller."""
        return self.order.batch_size

    def __len__(self) -> int:
        return self.order.batches

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Each epoch has its own order and augmentation."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number `start` on, the same as in a full iteration."""
        return self._normalised(self._pixels(self.epoch, start))

    def images_at(self, positions: Sequence[int]) -> Batch:
        """The images at these positions of the whole part, in its own order and without augmentation.

        Files that cannot be decoded are left out.
        """
        return next(self._normalised(iter([self._pixels_at(np.asarray(positions, dtype=np.int64))])))

    def _normalised(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for pixels, labels in batches:
            yield pixels.to(torch.float32).mul_(self._scale).add_(self._shift), labels

    @abstractmethod
    def _pixels(self, epoch: int, start: int) -> Iterator[Batch]:
        """uint8 images [N, C, H, W], augmented if requested, and their labels."""

    @abstractmethod
    def _pixels_at(self, positions: IntArray) -> Batch:
        """uint8 images [N, C, H, W] at these positions, not augmented, and their labels."""


class MemoryLoader(Loader):
    """Batches of images in memory."""

    def __init__(
        self,
        images: MemoryImages,
        order: Order,
        classes: tuple[str, ...],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        augment: bool,
        mirror: bool,
    ) -> None:
        super().__init__(order, classes, mean, std)
        self._images = images
        self._augment = augment
        self._mirror = mirror

    def _pixels(self, epoch: int, start: int) -> Iterator[Batch]:
        positions = self.order.positions(epoch)
        rows = torch.from_numpy(self._images.rows[positions])
        labels = torch.from_numpy(self._images.labels[positions])
        for index in range(start, len(self)):
            span = slice(index * self.batch_size, (index + 1) * self.batch_size)
            pixels = self._images.pixels[rows[span]]  # [N, C, H, W]
            if self._augment:
                pixels = pad_crop_mirror(
                    pixels,
                    self.order.rng(epoch, index),
                    mirror=self._mirror,
                    whole=self.order.whole(index),
                    share=self.order.share,
                )
            yield pixels, labels[span]

    def _pixels_at(self, positions: IntArray) -> Batch:
        taken = self._images.take(positions)
        return taken.pixels[torch.from_numpy(taken.rows)], torch.from_numpy(taken.labels)
