"""What a network is worth image by image, and paired tests of two networks on the same images.

Two networks that were measured on the same images are compared image by image, which tells smaller differences from
chance than two separate accuracies do:

- a quality that is a mean over images: the sign test on the images where the two differ. For right and wrong answers
  this is McNemar's exact test. With b images where only the first is right and c where only the second is, and
  n = b + c, p = min(1, 2 sum over i <= min(b, c) of C(n, i) / 2^n).
- any other quality (mean IoU, R2): a paired bootstrap. The images are drawn again with replacement, the same draw for
  both networks, and p is twice the share of draws in which the difference has the other sign, or none.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prunus.errors import RunError
from prunus.tasks import Task
from prunus.tasks.evaluate import image_values

MOST_NUMBERS = 4_000_000  # of all images together; with more, nothing is kept
DRAWS, CHUNK = 2000, 100  # of the bootstrap: all of them, and at once
MCNEMAR, SIGNS, BOOTSTRAP = "McNemar's exact test", "sign test", "paired bootstrap"


@dataclass(frozen=True)
class ImageValues:
    """What each image adds to a quality.

    Attributes:
        values: [N], whose mean is the quality; or [N, ...], sums of each image, for a quality that is a value of sums.
        labels: Digest of the labels in their order: other images, or another order, have another one.
    """

    values: Tensor
    labels: str


class ByImage:
    """Collects what each image adds to a task's quality while a network is evaluated."""

    def __init__(self, task: Task) -> None:
        self._quality, self._labels = task.measured, hashlib.sha256()
        self._parts: list[Tensor] = []
        self._numbers, self._known = 0, True

    def add(self, outputs: Any, labels: Any, count: int) -> None:
        """Add a batch of `count` images."""
        if not self._known:
            return
        values = image_values(self._quality, outputs, labels, count) if self._quality.is_mean else None
        if values is None:
            values = self._sums(outputs, labels, count)
        self._numbers += 0 if values is None else values.numel()
        if values is None or self._numbers > MOST_NUMBERS:
            self._known, self._parts = False, []
            return
        self._parts.append(values.detach().cpu())
        if isinstance(labels, Tensor):
            if len(self._parts) == 1:  # the digest does not depend on the size of batches
                self._labels.update(f"{labels.dtype} {list(labels.shape[1:])};".encode())
            self._labels.update(labels.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    def _sums(self, outputs: Any, labels: Any, count: int) -> Tensor | None:
        """The sums of each image alone, [N, ...]; None if images cannot be taken apart."""
        tensors = isinstance(outputs, Tensor) and isinstance(labels, Tensor) and {len(outputs), len(labels)} == {count}
        if self._quality.collects or not tensors:  # average precision has no sums
            return None
        measure = self._quality.measure
        whole = measure(outputs, labels).double()
        try:
            each = torch.stack([measure(outputs[i : i + 1], labels[i : i + 1]) for i in range(count)]).double()
        except Exception:  # noqa: BLE001  (a user-provided function that takes no single images)
            return None
        # It may also depend on the whole batch: then its sums do not add up.
        return each if torch.allclose(each.sum(0), whole, rtol=1e-6, atol=1e-6 * float(whole.abs().max())) else None

    def result(self) -> ImageValues | None:
        """The values of all images so far; None if they are not known, or too many."""
        if not self._known or not self._parts:
            return None
        values = torch.cat(self._parts)
        if values.ndim == 1 and bool(((values == 0) | (values == 1)).all()):
            values = values.to(torch.uint8)  # right and wrong: a byte for each image
        return ImageValues(values if values.dtype == torch.uint8 else values.float(), self._labels.hexdigest())


@dataclass(frozen=True)
class PairedTest:
    """Two networks on the same images.

    Attributes:
        test: Which test it is.
        difference: The second network's quality minus that of the first.
        standard_error: Of the difference.
        better: Images where the second network has the higher value; None for a bootstrap.
        worse: Images where it has the lower one.
        p: The probability of a difference at least as large if there were none.
        num_images: The number of images.
    """

    test: str
    difference: float
    standard_error: float
    better: int | None
    worse: int | None
    p: float
    num_images: int

    @property
    def p_text(self) -> str:
        """0.0312 as "0.031", and "< 0.001"."""
        return "< 0.001" if self.p < 0.001 else f"{self.p:.3f}"


def sign_test(better: int, worse: int) -> float:
    """The exact two-sided p-value: how probable so uneven a division of better + worse fair coins is."""
    n = better + worse
    total = sum(math.comb(n, i) for i in range(min(better, worse) + 1))
    return min(1.0, 2 * total / (1 << n))


def paired_test(first: ImageValues, second: ImageValues, value: Callable[[Tensor], float] | None = None) -> PairedTest:
    """Test whether two networks differ in quality, on the same images.

    Args:
        first: The values of one network.
        second: Those of the other one.
        value: Sums -> the quality, if the quality is no mean over images.

    Raises:
        RunError: The images are not the same, or not in the same order.
    """
    counts = [len(each.values) for each in (first, second)]
    if counts[0] != counts[1]:
        raise RunError(f"a paired test needs the same images: these are {counts[0]:,} and {counts[1]:,}")
    if first.labels != second.labels or first.values.shape != second.values.shape:
        raise RunError("a paired test needs the same images in the same order, and the labels of these differ")
    a, b = first.values.double(), second.values.double()
    if value is not None:
        return _bootstrap(a, b, value)
    if a.ndim != 1:
        raise RunError("values of this form are sums: a paired test of them needs the function of the quality")
    apart = b - a
    better, worse = int((apart > 0).sum()), int((apart < 0).sum())
    error = float(apart.std()) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    binary = first.values.dtype == second.values.dtype == torch.uint8
    name = MCNEMAR if binary else SIGNS
    return PairedTest(name, float(apart.mean()), error, better, worse, sign_test(better, worse), len(apart))


def _bootstrap(a: Tensor, b: Tensor, value: Callable[[Tensor], float]) -> PairedTest:
    """Draw the images again with replacement, DRAWS times, the same for both."""
    n, shape = len(a), a.shape[1:]
    draw = torch.Generator().manual_seed(0)
    differences: list[float] = []
    for _ in range(DRAWS // CHUNK):
        picked = torch.randint(n, (CHUNK, n), generator=draw)
        times = torch.zeros(CHUNK, n, dtype=torch.float64).scatter_add_(1, picked, torch.ones_like(picked).double())
        one, two = ((times @ side.reshape(n, -1)).reshape(CHUNK, *shape) for side in (a, b))
        differences += [float(value(y)) - float(value(x)) for x, y in zip(one, two, strict=True)]
    apart = torch.tensor(differences, dtype=torch.float64)
    low, high = int((apart <= 0).sum()), int((apart >= 0).sum())
    p = min(1.0, 2 * (min(low, high) + 1) / (DRAWS + 1))
    whole = float(value(b.sum(0))) - float(value(a.sum(0)))
    return PairedTest(BOOTSTRAP, whole, float(apart.std()), None, None, p, n)
