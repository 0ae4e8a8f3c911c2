"""A speed-up with the interval of the sign test; ranks from the usual tables of the test."""

from __future__ import annotations

import math
import random

import pytest

from prunus.timing.latency import NO_DIFFERENCE, Speedup, speedup


@pytest.mark.parametrize(("pairs", "rank"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6), (25, 8)])
def test_the_interval_is_between_ranks(pairs: int, rank: int) -> None:
    before = [float(n) for n in range(1, pairs + 1)]
    found = speedup(before, [1.0] * pairs)
    assert (found.low, found.high) == (rank, pairs + 1 - rank)
    assert found.ratio == (pairs + 1) / 2


def test_fewer_than_six_pairs_say_nothing() -> None:
    found = speedup([2.0] * 5, [1.0] * 5)
    assert (found.ratio, found.low, found.high) == (2.0, 0.0, math.inf)
    assert not found.measurable and str(found) == NO_DIFFERENCE
    assert not speedup([], []).measurable


def test_words() -> None:
    assert str(Speedup(1.523, 1.401, 1.664)) == "1.52x (1.40 to 1.66)"
    assert str(Speedup(0.5, 0.4, 0.9)) == "0.50x (0.40 to 0.90)"
    assert str(Speedup(0.37, 0.2, 1.1)) == str(Speedup(1.6, 0.9, 3.0)) == "no measurable difference"


def test_pairs_cancel_load_that_both_meet() -> None:
    """The machine is up to ten times slower in some turns; the ratio of each pair stays 2."""
    load = [1.0, 10.0, 3.0, 1.0, 7.0, 2.0, 1.0, 9.0, 4.0, 1.0]
    found = speedup([2 * slow for slow in load], load)
    assert (found.ratio, found.low, found.high) == (2.0, 2.0, 2.0)


def test_equal_networks_are_rarely_told_apart() -> None:
    """Of 400 comparisons of equal networks, about 4.1% (of 20 pairs) exclude 1; 8% would be far outside of chance."""
    draw = random.Random(0)
    wrong = 0
    for _ in range(400):
        times = [[math.exp(draw.gauss(0, 0.5)) for _ in range(20)] for _ in range(2)]
        wrong += speedup(*times).measurable
    assert wrong <= 32
