"""How much faster one network is than another, with an interval that says how far the figure can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
NO_DIFFERENCE = "no measurable difference"


@dataclass(frozen=True)
class Speedup:
    """Median of the ratios of paired turns, and its 95% confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def measurable(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        """1.52x (1.40 to 1.66), or that no difference can be measured."""
        if not self.measurable:
            return NO_DIFFERENCE
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


def speedup(before: Sequence[float], after: Sequence[float]) -> Speedup:
    """The speed of `after` relative to `before`, from the seconds of turns that were taken in pairs.

    Both networks of a pair ran right after each other, so that other load affects both. The interval is that of the
    sign test, which assumes nothing about the distribution: with the n ratios sorted, it reaches from the k-th smallest
    to the k-th largest, where k is the largest number with 2 P(Binomial(n, 1/2) < k) <= 0.05. Fewer than six pairs
    give no interval: it is then from 0 to infinity.
    """
    ratios = sorted(was / now for was, now in zip(before, after, strict=True))
    if not ratios:
        return Speedup(math.nan, 0.0, math.inf)
    k = _rank(len(ratios))
    low, high = (ratios[k - 1], ratios[-k]) if k else (0.0, math.inf)
    return Speedup(statistics.median(ratios), low, high)


def _rank(pairs: int) -> int:
    """The largest k with 2 P(Binomial(pairs, 1/2) < k) <= 1 - CONFIDENCE; 0 if there is none."""
    k, below = 0, 0
    while 2 * (below + math.comb(pairs, k)) <= (1 - CONFIDENCE) * 2**pairs:
        below += math.comb(pairs, k)
        k += 1
    return k
