"""Seconds of a layer at the widths that were timed, and estimates between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from secateur.measuring.layer_timing.widths import shares


@dataclass(frozen=True)
class LayerTimes:
    """Seconds per batch of a layer with its batch norm and activation, at numbers of inputs and outputs.

    Times are as measured: a narrower layer may take longer than a wider one. The outputs of a depthwise layer follow
    from its inputs, so it has one column.
    """

    inputs: tuple[int, ...]  # ascending
    outputs: tuple[int, ...]  # ascending
    seconds: tuple[tuple[float, ...], ...]  # [inputs, outputs]
    selecting: tuple[float, ...] = ()  # [inputs] further seconds if these inputs are selected from a stream

    def at(self, inputs: int, outputs: int, *, selects: bool = False) -> float:
        """Seconds for these numbers of inputs and outputs; see `shares` for widths that were not timed."""
        key = (inputs, outputs, selects)
        if key not in self._known:
            rows, columns = shares(inputs, self.inputs), shares(outputs, self.outputs)
            found = sum(a * b * self.seconds[i][j] for i, a in rows for j, b in columns)
            if selects and self.selecting:
                found += sum(share * self.selecting[i] for i, share in rows)
            self._known[key] = found
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, int, bool], float]:
        return {}

    @property
    def grid(self) -> npt.NDArray[np.float64]:
        """Seconds [inputs, outputs]."""
        return np.array(self.seconds)

    def mapped(self, change: Callable[[float], float]) -> LayerTimes:
        """The same with every time changed."""
        seconds = tuple(tuple(map(change, row)) for row in self.seconds)
        return LayerTimes(self.inputs, self.outputs, seconds, tuple(map(change, self.selecting)))

    def plus(self, other: LayerTimes) -> LayerTimes:
        """The times of two calls of one layer together."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        seconds = tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in pairs)
        selecting = tuple(a + b for a, b in zip(self.selecting, other.selecting, strict=True))
        return LayerTimes(self.inputs, self.outputs, seconds, selecting)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        found = {"inputs": list(self.inputs), "outputs": list(self.outputs), "seconds": [list(r) for r in self.seconds]}
        return {**found, "selecting": list(self.selecting)} if self.selecting else found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LayerTimes:
        """Read what `as_dict` returns. ValueError if it is something else."""
        widths = [tuple(data[axis]) for axis in ("inputs", "outputs")]
        seconds = tuple(tuple(float(s) for s in row) for row in data["seconds"])
        selecting = tuple(float(s) for s in data.get("selecting", ()))
        for axis in widths:
            if not axis or any(type(n) is not int or n < 1 for n in axis) or list(axis) != sorted(set(axis)):
                raise ValueError(f"widths must be ascending whole numbers above 0, not {list(axis)}")
        if len(seconds) != len(widths[0]) or any(len(row) != len(widths[1]) for row in seconds):
            raise ValueError("the number of times is not the number of widths")
        if selecting and len(selecting) != len(widths[0]):
            raise ValueError("the number of times of selections is not the number of inputs")
        if not all(math.isfinite(s) for row in (*seconds, selecting) for s in row):
            raise ValueError("times must be finite numbers")
        return cls(widths[0], widths[1], seconds, selecting)
