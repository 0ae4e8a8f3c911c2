"""Widths at which layers are timed, and how time between two of them is estimated.

Kernels work on 4, 8 or 16 channels at a time, and some fall back to slower code for other widths. So time is no smooth
function of width. Widths of one alignment behave alike: 12 and 20 are multiples of 4, 13 and 15 of nothing. A width
that was not timed is estimated from timed widths of its own alignment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LARGEST_BLOCK = 16  # channels that a kernel handles at a time, at most
NARROW = 16  # layers up to this width are timed at all even widths
MEDIUM = 64  # layers up to this width are timed at all multiples of 4


def widths_to_time(width: int) -> tuple[int, ...]:
    """Widths from 1 to `width`, ascending: those at which kernels step, and some between them.

    Up to 16: all even widths and some odd ones. Up to 64: multiples of 4. Above: about eighths of the width, as
    multiples of 16. Layers wider than 16 are also timed at some widths that are multiples of 4 or 8 only, or odd.
    """
    if width <= NARROW:
        found = {n for n in range(1, width) if n % 2 == 0 or n < 4 or n in (width // 2 - 1, width - 1)}
    elif width <= MEDIUM:
        found = {*range(4, width, 4), width // 8 - 1, width // 2 - 1, width - 1}
    else:
        step = max(1, round(width / 8 / LARGEST_BLOCK)) * LARGEST_BLOCK
        found = {step // 2, *range(step, width, step)}
        middle = width // 2 // LARGEST_BLOCK * LARGEST_BLOCK
        found |= {middle + 8, middle + 4, width - 4, middle - 1, width - 1}
    return tuple(sorted({n for n in found if 0 < n < width} | {width}))


def alignment(width: int) -> int:
    """The largest power of two up to 16 that divides a width."""
    return min(width & -width, LARGEST_BLOCK)


def shares(width: int, timed: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """Indices of timed widths (ascending) and their shares in the estimate for `width`; shares sum to 1.

    A timed width stands for itself. Otherwise the estimate is linear between its neighbours of the same alignment, or
    of any if there are none on both sides. Outside the timed widths the nearest one counts.
    """
    place = bisect_left(timed, width)
    if place < len(timed) and timed[place] == width:
        return ((place, 1.0),)
    alike = [i for i, n in enumerate(timed) if alignment(n) == alignment(width)]
    for among in (alike, range(len(timed))):
        below = [i for i in among if timed[i] < width]
        above = [i for i in among if timed[i] > width]
        if below and above:
            low, high = below[-1], above[0]
            share = (width - timed[low]) / (timed[high] - timed[low])
            return ((low, 1 - share), (high, share))
    return ((0, 1.0),) if width < timed[0] else ((len(timed) - 1, 1.0),)
