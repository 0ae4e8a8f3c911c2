"""Batches: normalised float images and labels, in an order that depends only on (seed, epoch, batch index)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
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
    """Which images make up which batch. Each of `world` processes has its own `rank` and sees its own images.

    Shuffled batches are for training: every process gets equally many images (the up to world - 1 left over sit the
    epoch out), and a last batch of one image is left out, because batch norm cannot train on it. Unshuffled batches
    are for measuring: every image comes exactly once.
    """

    total: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise DataError(f"batch_size should be at least 1, not {self.batch_size}")
        if not 0 <= self.rank < self.world:
            raise DataError(f"rank should lie in 0..{self.world - 1} (world {self.world}), not {self.rank}")
        if self.seed < 0:
            raise DataError(f"seed should not be negative, and is {self.seed}")

    @property
    def images(self) -> int:
        """How many images this process sees in an epoch."""
        if not self.shuffle:
            return len(range(self.rank, self.total, self.world))
        share = self.total // self.world
        alone = share > 1 and self.batch_size > 1 and share % self.batch_size == 1
        return share - 1 if alone else share

    @property
    def batches(self) -> int:
        """How many batches this process sees in an epoch."""
        return -(-self.images // self.batch_size)

    def positions(self, epoch: int) -> IntArray:
        """The images of this process in their order [images]."""
        order = np.arange(self.total)
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.total)
        return order[self.rank :: self.world][: self.images]

    def rng(self, epoch: int, batch: int) -> np.random.Generator:
        """The random numbers of one batch: nothing that came before it changes them."""
        return np.random.default_rng([self.seed, epoch, batch, self.rank])


class Loader(ABC):
    """Iterate it, again and again, for (images float32 [N, C, H, W], labels int64 [N]); `set_epoch` reshuffles."""

    def __init__(self, order: Order, classes: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.order = order
        self.classes = classes
        self.epoch = 0
        # (p / 255 - mean) / std == p * scale + shift, one multiply and one add for each pixel
        deviation, centre = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (std, mean))
        self._scale = (1 / (255 * deviation)).float()  # [1, C, 1, 1]
        self._shift = (-centre / deviation).float()  # [1, C, 1, 1]

    @property
    def images(self) -> int:
        """How many images an epoch of this process has."""
        return self.order.images

    @property
    def batch_size(self) -> int:
        """Images in a batch; the last may have fewer."""
        return self.order.batch_size

    def __len__(self) -> int:
        return self.order.batches

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration is for: another order and other augmentation for each."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number `start` on, exactly as a whole iteration would give them."""
        return self._normalised(self._pixels(self.epoch, start))

    def _normalised(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for pixels, labels in batches:
            yield pixels.to(torch.float32).mul_(self._scale).add_(self._shift), labels

    @abstractmethod
    def _pixels(self, epoch: int, start: int) -> Iterator[Batch]:
        """uint8 images [N, C, H, W], augmented where asked for, and their labels."""


class MemoryLoader(Loader):
    """Batches of images that lie in memory."""

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
                pixels = pad_crop_mirror(pixels, self.order.rng(epoch, index), mirror=self._mirror)
            yield pixels, labels[span]
