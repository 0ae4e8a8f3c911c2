"""Units race: the images that decide come first, and what is settled is not looked at again.

An image that the whole network is sure of hardly ever changes sides when a unit loses a few channels. So images are
taken in chunks, the least sure first. After each chunk the rest is extrapolated: further changes are taken to shrink
from chunk to chunk as they did from the last one to this, with the spread that was seen in this one. From draws of all
units' final values it is read off how far the k best found may be from the true k best; when that is within the
tolerance at the stated confidence, the race ends. Units that are among the k best in none of the draws drop out on the
way.
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
LEAST_CHUNKS = 3  # how changes shrink from chunk to chunk is not known from fewer
DRAWS = 400
DECAY = (0.3, 1.0)  # how much of a chunk's changes the next one may be taken to have


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
        self.chunk = 1  # images in the last chunk

    def active(self) -> list[int]:
        """Units still in the race."""
        return np.flatnonzero(self.in_race).tolist()

    def add(self, units: Sequence[int], values: Floats, images: Places) -> None:
        """What the units say of a chunk of images: values [units, images]."""
        rows, before = np.asarray(units), self.spread[units].sum()
        difference = values - self.base[images]  # [units, images]
        own = (difference**2).mean(axis=1)
        # A unit that changed nothing in this chunk may still do so: half of what is expected is what all units do.
        together = max(float(own.mean()), 0.5 / difference.size)
        self.spread[rows] = (own + together) / 2
        self.rate[rows] = difference.mean(axis=1)
        self.change[rows] += difference.sum(axis=1)
        decay = 1.0 if not self.seen.any() else float(np.clip(self.spread[rows].sum() / before, *DECAY))
        self.seen[rows] += len(images)
        self.chunk = len(images)
        chunks = max(1, -(-(len(self.base) - int(self.seen.max())) // len(images)))
        self.weight[rows] = np.mean(decay ** np.arange(1, chunks + 1))

    def expected(self) -> Floats:
        """Each unit's value over all images; one that has dropped out is no better than the k-th best."""
        left = len(self.base) - self.seen
        values = self.base.mean() + (self.change + left * self.weight * self.rate) / len(self.base)
        worst = np.sort(values[self.in_race])[-self.k]
        return np.asarray(np.where(self.in_race, values, np.minimum(values, worst)))

    def settled(self) -> bool:
        """Whether the k best are known well enough; drops units that no longer can be among them."""
        running = np.flatnonzero(self.in_race)
        left = (len(self.base) - self.seen)[running]
        if not left.any() or len(running) <= self.k:
            return True
        expected = self.expected()[running]
        more = left * self.weight[running]  # as many images of the last chunk's kind are still to come
        # What they will say varies, and so does the rate that was seen in the last chunk.
        deviation = np.sqrt(self.spread[running] * (more + more**2 / self.chunk)) / len(self.base)
        draws = expected + deviation * self.random.standard_normal((DRAWS, len(running)))
        best = np.argpartition(-draws, self.k - 1, axis=1)[:, : self.k]
        self.in_race[np.delete(running, np.unique(best))] = False
        chosen = np.argsort(-expected, kind="stable")[: self.k]
        regret = np.take_along_axis(draws, best, axis=1).mean(axis=1) - draws[:, chosen].mean(axis=1)
        known = self.seen.max() >= LEAST_CHUNKS * self.chunk
        return bool(known and np.quantile(regret, self.confidence) <= self.tolerance)
