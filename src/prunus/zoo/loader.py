"""Batches of normalised float images and labels. Their order depends only on (seed, epoch, batch index)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from prunus.errors import DataError
from prunus.zoo.boxes import letterbox
from prunus.zoo.images import CROP_AREA, LABELLED_AREA, Images, IntArray, MemoryImages, Pixels, decode, decode_with_mask

logger = logging.getLogger(__name__)

Batch = tuple[Any, ...]  # images, labels; images alone if they have no labels
PADDED_SHARE = 8  # pad by 1/8 of the height: 4 pixels for 32
MOST_CORRUPT, CORRUPT_SHARE = 20, 20  # by default 20 files of an epoch may be corrupt, and at most one in 20
NAMED = 5  # corrupt files listed in an error


def pad_crop_mirror(
    pixels: Tensor, rng: np.random.Generator, *, mirror: bool, whole: int | None = None, share: slice = slice(None)
) -> Tensor:
    """Pad each image with black, crop it to its old size at a random place, and mirror it with probability 1/2.

    This is the standard augmentation of He et al. 2016, on a whole batch at once. All random numbers come from `rng` in
    a fixed order, so the same generator gives the same images. Of a batch of `whole` images that several processes
    share, the uint8 `pixels` [N, C, H, W] are `share`. `mirror` is False for images such as digits.
    """
    count, _, height, width = pixels.shape
    whole = count if whole is None else whole
    pad = max(1, height // PADDED_SHARE)
    tops, lefts = (torch.from_numpy(rng.integers(0, 2 * pad + 1, whole)[share]) for _ in range(2))  # [N] each
    padded = F.pad(pixels, (pad, pad, pad, pad))  # [N, C, H + 2 pad, W + 2 pad]
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view [N, C, 2 pad + 1, 2 pad + 1, H, W]
    cropped = windows[torch.arange(count), :, tops, lefts]  # [N, C, H, W]
    if mirror:
        mirrored = torch.from_numpy(rng.random(whole)[share] < 0.5)  # [N]
        cropped[mirrored] = cropped[mirrored].flip(3)
    return cropped


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
        if self.batch_size < 1 or self.seed < 0:
            raise DataError(f"batch_size must be at least 1 and seed at least 0; got {self.batch_size} and {self.seed}")
        if not 0 <= self.rank < self.world:
            raise DataError(f"rank must lie in 0..{self.world - 1} (world {self.world}), got {self.rank}")

    @property
    def num_images(self) -> int:
        """Number of images of this process in an epoch."""
        if not self.shuffle:
            return len(range(self.rank, self.total, self.world))
        share = self.total // self.world
        alone = share > 1 and self.batch_size > 1 and share % self.batch_size == 1
        return share - 1 if alone else share

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


# A batch: pixels uint8 [n, C, H, W]; labels [n], [n, L], of masks [n, H, W], or of boxes a dict for each image; (path,
# reason) of each file that could not be decoded; and what is wrong with labels that cannot be used. That is raised in
# the main process, because an error loses its type and text on the way there.
Decoded = tuple[Tensor, Any, Sequence[tuple[str, str]], str]


@dataclass(frozen=True, eq=False)
class _Epoch(Dataset[Decoded]):
    """Item i is the whole batch i. Its random numbers depend on i only, not on the worker that decodes it."""

    images: Images
    order: Order
    number: int
    positions: IntArray  # of this process's images, in their order
    augment: bool
    mirror: bool
    size: int
    num_classes: int

    def __getitem__(self, index: int) -> Decoded:
        rng, whole = self.order.rng(self.number, index), self.order.whole(index)
        positions = self.positions[index * self.order.batch_size : (index + 1) * self.order.batch_size]
        if isinstance(self.images, MemoryImages):
            pixels = self.images.pixels[torch.from_numpy(self.images.rows[positions])]
            if self.augment:
                pixels = pad_crop_mirror(pixels, rng, mirror=self.mirror, whole=whole, share=self.order.share)
            return pixels, torch.from_numpy(self.images.labels[positions]), (), ""
        # One generator per image, so that a corrupt file does not change the other crops.
        seeds = [rng.integers(2**63) for _ in range(whole)][self.order.share]
        decoded: list[tuple[Pixels, Any]] = []
        corrupt: list[tuple[str, str]] = []
        for position, seed in zip(positions, seeds, strict=True):
            try:
                decoded.append(self._decoded(position, np.random.default_rng(seed) if self.augment else None))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                corrupt.append((self.images.paths[position], f"{type(error).__name__}: {error}"))
            except DataError as error:
                return torch.zeros(0), torch.zeros(0), (), str(error)
        empty = np.zeros((0, 3, self.size, self.size), np.uint8)
        pixels = torch.from_numpy(np.stack([image for image, _ in decoded]) if decoded else empty)
        labels: Any = [label for _, label in decoded]
        if not self.images.boxes:
            labels = torch.from_numpy(np.stack(labels) if labels else np.zeros(0))
        return pixels, labels, corrupt, ""

    def _decoded(self, position: int, crop: np.random.Generator | None) -> tuple[Pixels, Any]:
        """An image of a file, and its label, mask or boxes."""
        images: Any = self.images
        path, label = images.paths[position], np.asarray(images.labels[position])
        if images.masks:
            return decode_with_mask(path, images.masks[position], self.size, crop, self.num_classes)
        if images.boxes:
            declared = images.sizes[position] if images.sizes else None
            return letterbox(path, images.boxes[position], self.size, crop, declared)
        return decode(path, self.size, crop, CROP_AREA[0] if label.ndim == 0 else LABELLED_AREA), label


@dataclass(eq=False, repr=False)
class Loader:
    """An iterable of (images float32 [N, C, H, W], labels int64 [N]); `set_epoch` shuffles them anew.

    Without classes it gives (images,). The labels of boxes are a list with a dict for each image. Corrupt files are
    skipped and listed in `corrupt`: path -> reason.

    Attributes:
        mirror: Whether images in memory may be mirrored.
        size: Height and width of the crops of files.
        workers: Processes that decode files.
        max_corrupt: Largest number of corrupt files in an epoch.
    """

    images: Images
    order: Order
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool
    mirror: bool = True
    size: int = 0
    workers: int = 0
    max_corrupt: int | None = None

    def __post_init__(self) -> None:
        self.epoch = 0
        self.corrupt: dict[str, str] = {}
        if self.max_corrupt is None:  # of few images, a few corrupt ones are already many
            self.max_corrupt = min(MOST_CORRUPT, max(1, self.num_images // CORRUPT_SHARE))
        # (p / 255 - mean) / std == p * scale + shift: one multiplication and one addition per pixel
        mean, std = (torch.tensor(values, dtype=torch.float64).view(1, -1, 1, 1) for values in (self.mean, self.std))
        self._scale = (1 / (255 * std)).float()  # [1, C, 1, 1]
        self._shift = (-mean / std).float()  # [1, C, 1, 1]

    def __repr__(self) -> str:
        how = ", shuffled" * self.order.shuffle + ", augmented" * self.augment
        return f"Loader({self.num_images:,} images in {len(self):,} batches of {self.batch_size}{how})"

    @property
    def num_images(self) -> int:
        """Number of images of this process in an epoch."""
        return self.order.num_images

    @property
    def batch_size(self) -> int:
        """Number of images in a batch; the last batch may be smaller."""
        return self.order.batch_size

    def __len__(self) -> int:
        return -(-self.num_images // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Each epoch has its own order and augmentation."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate()

    def iterate(self, start: int = 0) -> Iterator[Batch]:
        """The batches from number `start` on, the same as in a full iteration."""
        return self._batches(self._of_epoch(self.order, self.order.positions(self.epoch), self.augment), start)

    def images_at(self, positions: Sequence[int]) -> Batch:
        """The images at these positions of the whole part, in its own order and without augmentation.

        Files that cannot be decoded are left out.
        """
        order = Order(len(positions), len(positions))
        pixels, labels, _, wrong = self._of_epoch(order, np.asarray(positions, dtype=np.int64), augment=False)[0]
        if wrong:
            raise DataError(wrong)
        return self._normalised(pixels, labels)

    def _of_epoch(self, order: Order, positions: IntArray, augment: bool) -> _Epoch:
        rest = augment, self.mirror, self.size, len(self.classes)
        return _Epoch(self.images, order, self.epoch, positions, *rest)

    def _normalised(self, pixels: Tensor, labels: Any) -> Batch:
        images = pixels.to(torch.float32).mul_(self._scale).add_(self._shift)
        return (images, labels) if self.classes else (images,)

    def _batches(self, epoch: _Epoch, start: int) -> Iterator[Batch]:
        batches: DataLoader[Decoded] = DataLoader(
            epoch,
            batch_size=None,
            sampler=range(start, len(self)),
            num_workers=0 if isinstance(self.images, MemoryImages) else self.workers,
            generator=torch.Generator(),  # DataLoader would draw from the global generator
        )
        corrupt: dict[str, str] = {}  # of this epoch
        try:
            for pixels, labels, undecoded, wrong in batches:
                if wrong:
                    raise DataError(wrong)
                corrupt.update(undecoded)
                if self.max_corrupt is not None and len(corrupt) > self.max_corrupt:
                    raise DataError(
                        f"{len(corrupt)} images cannot be decoded, and at most {self.max_corrupt} of "
                        f"{self.num_images} may be skipped; repair or delete them. The first ones: {_named(corrupt)}"
                    )
                if len(labels):
                    yield self._normalised(pixels, labels)
        finally:
            if not corrupt.keys() <= self.corrupt.keys():  # each epoch skips the same files; once is enough
                logger.warning("skipped %d images that cannot be decoded: %s", len(corrupt), _named(corrupt))
            self.corrupt.update(corrupt)


def _named(corrupt: dict[str, str]) -> str:
    """The first few files with their reasons."""
    named = "; ".join(f"{path} ({reason})" for path, reason in list(corrupt.items())[:NAMED])
    return f"{named}; ..." if len(corrupt) > NAMED else named
