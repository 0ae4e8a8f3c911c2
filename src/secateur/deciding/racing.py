"""Units race: the images that decide come first, and what is settled is not looked at again.

An image that the whole network is sure of hardly ever changes sides when a unit loses a few channels. So images are
taken in the order of the margin between the two highest logits, least sure first, in chunks. After each chunk the
rest is extrapolated: a unit's further change per image is taken to shrink as it did from the last chunk to this one,
with the spread of the last chunk. From draws of all units' final values it is read off how far the k best found may
be from the true k best; when that is within the tolerance at the stated confidence, the race ends. Units that are
among the k best in none of the draws drop out on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secateur.errors import DecideError

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Ask = Callable[[Sequence[int], Places], Floats]  # units, images -> their values [units, images]

CHUNKS = 20  # parts into which the images are cut
SMALLEST_CHUNK = 50
DRAWS = 400


@dataclass(frozen=True)
class Raced:
    """Each unit's mean value over all images, extrapolated where it has not seen all, and how many it has seen."""

    values: Floats
    seen: tuple[int, ...]


def race(
    base: Floats, order: Places, ask: Ask, units: int, k: int, *, confidence: float, tolerance: float, seed: int
) -> Raced:
    """Ask units about images until the k best are known well enough.

    base: what the whole network says of each image; values of units are compared with it.
    order: the images, those that tell most first.
    """
    if not 0.5 <= confidence < 1:
        raise DecideError(f"confidence must be at least 0.5 and below 1, got {confidence}")
    if not tolerance >= 0:
        raise DecideError(f"tolerance must be 0 or more, got {tolerance}")
    size = max(SMALLEST_CHUNK, -(-len(order) // CHUNKS))
    state = _Race(base, units, k, confidence, tolerance, seed)
    for chunk in np.split(order, range(size, len(order), size)):
        images, active = np.sort(chunk), state.active()
        state.add(active, ask(active, images), images)
        if state.settled():
            break
    return Raced(state.expected(), tuple(state.seen.tolist()))


class _Race:
    """Running sums, extrapolation and the decision to stop."""

    def __init__(self, base: Floats, units: int, k: int, confidence: float, tolerance: float, seed: int) -> None:
        self.base, self.k = base, min(k, units)
        self.confidence, self.tolerance = confidence, tolerance
        self.random = np.random.default_rng(seed)
        self.change = np.zeros(units)  # sum of changes over the images seen
        self.seen = np.zeros(units, dtype=np.int64)
        self.rate = np.zeros(units)  # mean change per image in the last chunk
        self.spread = np.ones(units)  # its variance per image
        self.weight = np.ones(units)  # share of that rate that the images left are expected to have
        self.in_race = np.ones(units, dtype=bool)

    def active(self) -> list[int]:
        """Units still in the race."""
        return np.flatnonzero(self.in_race).tolist()

    def add(self, units: Sequence[int], values: Floats, images: Places) -> None:
        """What the units say of a chunk of images: values [units, images]."""
        rows = np.asarray(units)
        difference = values - self.base[images]  # [units, images]
        first, before = not self.seen.any(), self.spread[rows].sum()
        self.change[rows] += difference.sum(axis=1)
        self.seen[rows] += len(images)
        self.rate[rows] = difference.mean(axis=1)
        self.spread[rows] = np.maximum((difference**2).mean(axis=1), 0.5 / len(images))
        decay = 1.0 if first else float(np.clip(self.spread[rows].sum() / before, 0.3, 1.0))
        chunks = max(1, -(-(len(self.base) - int(self.seen.max())) // len(images)))
        # Units that have dropped out keep what was expected of them when they did.
        self.weight[rows] = np.mean(decay ** np.arange(1, chunks + 1))

    def expected(self) -> Floats:
        """Each unit's value over all images."""
        left = len(self.base) - self.seen
        return np.asarray(self.base.mean() + (self.change + left * self.weight * self.rate) / len(self.base))

    def settled(self) -> bool:
        """Whether the k best are known well enough; drops units that no longer can be among them."""
        left = len(self.base) - self.seen
        if not left[self.in_race].any() or self.in_race.sum() <= self.k:
            return True
        deviation = np.sqrt(left * self.weight * self.spread) / len(self.base)
        draws = self.expected() + deviation * self.random.standard_normal((DRAWS, len(self.change)))
        best = np.argpartition(-draws, self.k - 1, axis=1)[:, : self.k]
        reached = np.zeros(len(self.change), dtype=bool)
        reached[np.unique(best)] = True
        self.in_race &= reached
        chosen = np.argsort(-self.expected(), kind="stable")[: self.k]
        regret = np.take_along_axis(draws, best, axis=1).mean(axis=1) - draws[:, chosen].mean(axis=1)
        return bool(np.quantile(regret, self.confidence) <= self.tolerance)
