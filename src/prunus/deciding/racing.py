"""Racing: units are compared on the most informative images first, and dropped once they cannot win.

An image that the whole network classifies with a large margin hardly ever changes its class when a unit loses a few
channels. So images come in chunks, those with the smallest margin first. After each chunk the remaining images are
extrapolated: changes are assumed to shrink from chunk to chunk as they did between the last two, with the spread seen
in the last one. Random draws of all units' final values show how far the k best units found may be from the true k
best. The race ends when that is within the tolerance at the given confidence. Units that are among the k best in none
of the draws drop out earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Ask = Callable[[Sequence[int], Places], Floats]  # units, images -> their values [units, images]

CHUNKS = 20  # the images are read in this number of chunks
SMALLEST_CHUNK = 50
LEAST_CHUNKS = 3  # fewer do not show how changes shrink from chunk to chunk
DRAWS = 400
DECAY = (0.3, 1.0)  # bounds of the factor by which changes shrink from chunk to chunk


def race(
    base: Floats, order: Places, ask: Ask, units: int, k: int, *, confidence: float, tolerance: float, seed: int
) -> tuple[Floats, Places]:
    """Evaluate units on images until the k best are known well enough.

    Args:
        base: The whole network's value on each image; units are compared with it.
        order: The images, the most informative first.
        ask: Gives the values of units on images; images are in ascending order.
        units: Number of units.
        k: How many of the best units to find.
        confidence: With this probability, the k units found ...
        tolerance: ... are in the mean within this of the true k best.
        seed: Of the random draws.

    Returns:
        Each unit's mean value over all images, extrapolated if it has not seen all of them, and how many it has seen.
    """
    size = max(SMALLEST_CHUNK, -(-len(order) // CHUNKS))
    state = _Race(base, units, k, confidence, tolerance, seed)
    for chunk in np.split(order, range(size, len(order), size)):
        images, active = np.sort(chunk), np.flatnonzero(state.in_race).tolist()
        state.add(active, ask(active, images), images)
        if state.settled():
            break
    return state.expected(), state.seen


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
        self.weight = np.ones(units)  # expected share of that rate on the remaining images
        self.in_race = np.ones(units, dtype=bool)
        self.chunk = 1  # images in the last chunk

    def add(self, units: Sequence[int], values: Floats, images: Places) -> None:
        """Add the units' values on a chunk of images: values [units, images]."""
        rows, before = np.asarray(units), self.spread[units].sum()
        difference = values - self.base[images]  # [units, images]
        each = (difference**2).mean(axis=1)
        # A unit without changes in this chunk may still change later: half of its spread is the mean of all units.
        together = max(float(each.mean()), 0.5 / difference.size)
        self.spread[rows] = (each + together) / 2
        self.rate[rows] = difference.mean(axis=1)
        self.change[rows] += difference.sum(axis=1)
        decay = 1.0 if not self.seen.any() else float(np.clip(self.spread[rows].sum() / before, *DECAY))
        self.seen[rows] += len(images)
        self.chunk = len(images)
        chunks = max(1, -(-(len(self.base) - int(self.seen.max())) // len(images)))
        self.weight[rows] = np.mean(decay ** np.arange(1, chunks + 1))

    def expected(self) -> Floats:
        """Each unit's value over all images; units that dropped out are at most as good as the k-th best."""
        left = len(self.base) - self.seen
        values = self.base.mean() + (self.change + left * self.weight * self.rate) / len(self.base)
        worst = np.sort(values[self.in_race])[-self.k]
        return np.asarray(np.where(self.in_race, values, np.minimum(values, worst)))

    def settled(self) -> bool:
        """Whether the k best are known well enough. Drops units that can no longer be among them."""
        running = np.flatnonzero(self.in_race)
        left = (len(self.base) - self.seen)[running]
        if not left.any() or len(running) <= self.k:
            return True
        expected = self.expected()[running]
        more = left * self.weight[running]  # remaining images, in images like those of the last chunk
        # Both the remaining values and the rate seen in the last chunk are uncertain.
        deviation = np.sqrt(self.spread[running] * (more + more**2 / self.chunk)) / len(self.base)
        draws = expected + deviation * self.random.standard_normal((DRAWS, len(running)))
        best = np.argpartition(-draws, self.k - 1, axis=1)[:, : self.k]
        self.in_race[np.delete(running, np.unique(best))] = False
        chosen = np.argsort(-expected, kind="stable")[: self.k]
        regret = np.take_along_axis(draws, best, axis=1).mean(axis=1) - draws[:, chosen].mean(axis=1)
        known = self.seen.max() >= LEAST_CHUNKS * self.chunk
        return bool(known and np.quantile(regret, self.confidence) <= self.tolerance)
