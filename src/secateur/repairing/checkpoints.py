"""Where to keep values on the way through two networks: everywhere if memory allows, else where that saves most time.

Both networks stop in front of each layer that is repaired, with all images. Between two stops the values of all images
are either kept (in memory as far as they fit, the rest in a file), or computed again from an earlier stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DISK = 2e8  # bytes per second to or from a file
COPY = 4e9  # bytes per second in memory


@dataclass(frozen=True)
class Stops:
    """What is known about the stops. seconds: from the images to each stop; sizes: bytes of the values at each stop."""

    seconds: Sequence[float]
    sizes: Sequence[float]


def checkpoints(stops: Stops, capacity: float, disk: float) -> list[bool]:
    """At which stops values are kept, so that all stops are reached in the least time. The last one never is.

    With values kept at stop i, those at k > i cost reading(i) + seconds(i to k) each time they are needed, and keeping
    them costs writing(k). The best way to each stop is found from the best ways to all stops before it.
    """
    count = len(stops.sizes)
    best, last = [0.0] + [math.inf] * count, [0] * (count + 1)  # way k + 1 ends with values kept at stop k; 0: images
    for k in range(count):
        on_disk = _on_disk(stops, k, capacity)
        writing = 0.0 if k == count - 1 else math.inf if on_disk > disk else on_disk / DISK
        for i in range(k + 1):
            cost = best[i] + _serving(stops, i - 1, k, capacity) + writing
            if cost < best[k + 1]:
                best[k + 1], last[k + 1] = cost, i
    kept = [False] * count
    way = last[count] if count else 0
    while way:
        kept[way - 1] = True
        way = last[way]
    return kept


def _serving(stops: Stops, start: int, end: int, capacity: float) -> float:
    """Time to reach the stops start + 1, ..., end, each from `start` (-1: the images)."""
    begin, read = 0.0, 0.0
    again = end - start - 1  # visits after the first one start from a copy
    if start >= 0:
        begin = stops.seconds[start]
        on_disk = _on_disk(stops, start, capacity)
        read = (again + 1) * on_disk / DISK + again * (stops.sizes[start] - on_disk) / COPY
    return read + sum(stops.seconds[k] - begin for k in range(start + 1, end + 1))


def _on_disk(stops: Stops, stop: int, capacity: float) -> float:
    return max(0.0, stops.sizes[stop] - capacity)
