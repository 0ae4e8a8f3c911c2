"""Which channels are left under a plan.

A decision is about readers: a plan says which channels the readers of a unit go on reading. A channel is alive while a
layer reads it, or while it must be kept. Dead channels are removed from their writers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from secateur.channels.discovery.discover import Discovery
from secateur.channels.discovery.grouping import Grouped
from secateur.channels.units import Keep, Mask


@dataclass(frozen=True)
class Liveness:
    """The channels that a plan leaves."""

    alive: Mask  # [channels] what the writers keep
    read: Mapping[str, Mask]  # reader that selects -> [channels] what it still reads; other readers read all alive


def find_alive(found: Discovery, grouped: Grouped, keep: Keep) -> Liveness:
    """The channels that are left if each unit in `keep` keeps only these channels."""
    shared = np.ones(found.channels, dtype=bool)
    own: dict[str, Mask] = {}
    for name, kept in keep.items():
        reader = grouped.selecting.get(name)
        mask = shared if reader is None else own.setdefault(reader, np.ones_like(shared))
        numbers = grouped.channels[name]
        mask[numbers] = False
        mask[numbers[np.asarray(kept, dtype=np.int64)]] = True
    alive = np.zeros_like(shared)
    alive[list(grouped.held)] = True
    read = {reader: shared & mask for reader, mask in own.items()}
    for reader, vector in found.reads.items():
        numbers = vector[vector >= 0]
        alive[numbers[read.get(reader, shared)[numbers]]] = True
    return Liveness(alive, {reader: mask & alive for reader, mask in read.items()})


def writers_left_empty(found: Discovery, live: Liveness) -> list[str]:
    """Layers that would have no output left."""
    return [writer for writer, vector in found.writes.items() if (vector >= 0).all() and not live.alive[vector].any()]
