"""Widths that are timed, and estimates between them."""

from __future__ import annotations

import numpy as np
import pytest

from prunus.timing.latency_table import LayerTimes, alignment, shares, widths_to_time
from prunus.timing.layer_timing import coarse, complete, pairs_to_time


def test_widths_that_are_timed() -> None:
    assert widths_to_time(16) == (1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 15, 16)
    assert widths_to_time(32) == (3, 4, 8, 12, 15, 16, 20, 24, 28, 31, 32)
    assert widths_to_time(512) == (32, 64, 128, 192, 255, 256, 260, 264, 320, 384, 448, 508, 511, 512)
    assert widths_to_time(3) == (1, 2, 3) and widths_to_time(1) == (1,)
    for width in range(1, 600):
        found = widths_to_time(width)
        assert found[-1] == width and found[0] >= 1 and list(found) == sorted(set(found))


def test_alignments() -> None:
    assert [alignment(n) for n in (1, 6, 12, 24, 48, 64, 96)] == [1, 2, 4, 8, 16, 16, 16]


def test_a_width_that_was_not_timed_follows_those_of_its_alignment() -> None:
    timed = (7, 8, 16, 31, 32)
    assert shares(16, timed) == ((2, 1.0),)
    assert shares(15, timed) == ((0, pytest.approx(16 / 24)), (3, pytest.approx(8 / 24)))  # odd: between 7 and 31
    assert shares(24, timed) == (
        (2, pytest.approx(0.875 * 0 + 7 / 15)),
        (3, pytest.approx(8 / 15)),
    )  # no multiple of 8 above
    assert shares(3, timed) == ((0, 1.0),) and shares(40, timed) == ((4, 1.0),)


def test_seconds_at_timed_and_other_widths() -> None:
    found = LayerTimes((8, 16), (4, 8, 16), ((1.0, 2.0, 6.0), (3.0, 9.0, 8.0)), (0.5, 0.0))
    assert [found.at(8, 4), found.at(16, 16), found.at(16, 8)] == [1.0, 8.0, 9.0]  # slower than wider: kept as it is
    assert found.at(16, 12) == 8.5 and found.at(12, 4) == 2.0
    assert found.at(8, 4, selects=True) == 1.5 and found.at(16, 4, selects=True) == 3.0
    assert LayerTimes.from_dict(found.as_dict()) == found
    assert found.plus(found).seconds[1] == (6.0, 18.0, 16.0) and found.mapped(lambda s: s / 2).at(8, 16) == 3.0


@pytest.mark.parametrize(
    "change, message",
    [
        ({"inputs": [16, 8]}, "ascending"),
        ({"inputs": [8.0, 16]}, "whole numbers"),
        ({"seconds": [[1.0, 2.0]]}, "number of times"),
        ({"selecting": [1.0]}, "number of inputs"),
        ({"seconds": [[1.0, 2.0], [float("nan"), 1.0]]}, "finite"),
    ],
)
def test_wrong_times_are_refused(change: dict[str, object], message: str) -> None:
    good = {"inputs": [8, 16], "outputs": [4, 8], "seconds": [[1.0, 2.0], [3.0, 4.0]]}
    with pytest.raises(ValueError, match=message):
        LayerTimes.from_dict({**good, **change})


def test_the_cross_and_a_coarse_grid_are_timed() -> None:
    widths = widths_to_time(64)
    assert coarse(widths) == [16, 31, 32, 48, 64] and coarse((1, 3)) == [1, 3] and coarse((5,)) == [5]
    pairs = pairs_to_time(widths, widths)
    assert {(i, 64) for i in widths} | {(64, o) for o in widths} <= set(pairs)
    assert len(pairs) == len(set(pairs)) == 2 * len(widths) - 1 + 16  # of 361
    assert pairs_to_time((3,), (8, 16)) == [(3, 8), (3, 16)]


def test_other_pairs_are_completed() -> None:
    """Kernels of 16 channels with an overhead on either side: the product form is exact."""
    inputs, outputs = widths_to_time(64), widths_to_time(32)
    true = lambda i, o: (1 + -(-i // 16)) * (2 + o % 2 + -(-o // 8))
    timed = {(i, o): float(true(i, o)) for i, o in pairs_to_time(inputs, outputs)}
    assert np.allclose(complete(inputs, outputs, timed), [[true(i, o) for o in outputs] for i in inputs])


def test_a_sum_is_corrected_by_the_coarse_grid() -> None:
    """A time that is no product, such as reading + computing + writing, is right to some per cent between."""
    widths = widths_to_time(64)
    true = lambda i, o: 10 * i + 10 * o + i * o
    found = complete(widths, widths, {(i, o): float(true(i, o)) for i, o in pairs_to_time(widths, widths)})
    for place in ((widths.index(16), widths.index(48)), (widths.index(32), widths.index(32))):
        assert found[place] == pytest.approx(true(widths[place[0]], widths[place[1]]))
    odd = widths.index(31)
    assert found[odd, odd] == pytest.approx(true(31, 31))
    inside = [
        (a, b)
        for a in range(len(widths))
        for b in range(len(widths))
        if widths[a] % 4 == widths[b] % 4 == 0 and min(widths[a], widths[b]) >= 16
    ]
    assert all(found[p] == pytest.approx(true(widths[p[0]], widths[p[1]]), rel=0.03) for p in inside)
