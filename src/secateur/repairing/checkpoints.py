"""Where to keep values on the way through two networks: everywhere if memory allows, else where that saves most time.

Both networks stop in front of each layer that is repaired, with as many of the images as the layer needs. Between two
stops their values are either kept (in memory as far as they fit, the rest in a file), or computed again from an earlier
stop. Images that no earlier stop needed come straight from the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DISK = 2e8  # bytes per second to or from a file
COPY = 4e9  # bytes per second in memory


@dataclass(frozen=True)
class Stops:
    """What is known about the stops: for one image, the seconds from the start to each stop and the bytes of its values
    there; and how many images each stop needs, never fewer than the one before."""

    seconds: Sequence[float]
    sizes: Sequence[float]
    images: Sequence[int]

    def bytes_at(self, stop: int) -> float:
        """Bytes of the values of all images that this stop needs."""
        return self.sizes[stop] * self.images[stop]


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
    """Time to reach the stops start + 1, ..., end, each from the values kept at `start` (-1: from the images)."""
    begin, kept, read = 0.0, 0, 0.0
    again = end - start - 1  # visits after the first one start from a copy
    if start >= 0:
        begin, kept = stops.seconds[start], stops.images[start]
        on_disk = _on_disk(stops, start, capacity)
        read = (again + 1) * on_disk / DISK + again * (stops.bytes_at(start) - on_disk) / COPY
    return read + sum(stops.images[k] * stops.seconds[k] - kept * begin for k in range(start + 1, end + 1))


def _on_disk(stops: Stops, stop: int, capacity: float) -> float:
    return max(0.0, stops.bytes_at(stop) - capacity)
