"""Where channels stand on the axes of layers: the readers and writers of each unit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secateur.channels.units import Indices


class Places:
    """The positions of each channel on the axes of layers."""

    def __init__(self, vectors: Mapping[str, Indices], channels: int) -> None:
        self.vectors, self.names = vectors, list(vectors)
        empty = np.zeros(0, dtype=np.int64)
        layer = np.repeat(np.arange(len(vectors)), [len(v) for v in vectors.values()])
        position = np.concatenate([empty, *(np.arange(len(v)) for v in vectors.values())])
        channel = np.concatenate([empty, *vectors.values()])
        order = np.argsort(channel, kind="stable")[int((channel < 0).sum()) :]  # by channel, then layer and position
        self.layer, self.position = layer[order], position[order]
        count = np.bincount(channel[order], minlength=channels)
        self.end = np.cumsum(count)
        self.start = self.end - count

    def of(self, channels: Indices, only: str | None = None) -> list[tuple[str, Indices, Indices]]:
        """(layer, which of `channels` it has [n], positions [n, m]), for each layer and number m of occurrences."""
        if only is not None:
            return self._parts(only, *_found_in(self.vectors[only], channels), len(channels))
        lengths = self.end[channels] - self.start[channels]
        if (lengths == lengths[:1]).all():
            rows = self.start[channels, None] + np.arange(lengths[0])
            layers = self.layer[rows]
            if (layers == layers[0]).all():  # the usual case: all channels occur equally often in the same layers
                numbers = np.flatnonzero(np.bincount(layers[0]))
                here, positions = np.arange(len(channels)), self.position[rows]
                return [(self.names[number], here, positions[:, layers[0] == number]) for number in numbers]
        rows = np.arange(lengths.sum()) + np.repeat(self.start[channels] - np.cumsum(lengths) + lengths, lengths)
        mine = np.repeat(np.arange(len(channels)), lengths)
        layer, position = self.layer[rows], self.position[rows]
        parts = []
        for number in np.flatnonzero(np.bincount(layer)):
            inside = layer == number
            parts += self._parts(self.names[number], mine[inside], position[inside], len(channels))
        return parts

    @staticmethod
    def _parts(name: str, mine: Indices, at: Indices, count: int) -> list[tuple[str, Indices, Indices]]:
        times = np.bincount(mine, minlength=count)
        here = np.flatnonzero(times)
        times = times[here]
        if times.min() == times.max():
            return [(name, here, at.reshape(len(here), -1))]
        repeated = np.repeat(times, times)
        return [(name, here[times == m], at[repeated == m].reshape(-1, m)) for m in np.unique(times).tolist()]


def _found_in(vector: Indices, channels: Indices) -> tuple[Indices, Indices]:
    """All occurrences of `channels` (ascending) in `vector`: which channel, and at which position; by channel."""
    place = np.minimum(np.searchsorted(channels, vector), len(channels) - 1)
    at = np.flatnonzero(channels[place] == vector)
    mine = place[at]
    order = np.argsort(mine, kind="stable")
    return mine[order], at[order]
