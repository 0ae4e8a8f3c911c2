"""Which pairs of widths of a layer are timed, and how the others follow from them.

A layer has many pairs of numbers of inputs and outputs. Timed are the cross (every number of inputs with all outputs,
every number of outputs with all inputs), where all steps of the kernels show, and a coarse grid inside. For other pairs

    seconds(i, o) = seconds(i, all) * seconds(all, o) / seconds(all, all) * correction(i, o)

with the correction that makes this true on the coarse grid, bilinear between its widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from secateur.measuring.layer_timing.widths import alignment

FEW = 30  # up to this number, all pairs are timed
COARSE = (0.25, 0.5, 0.75)  # widths of the coarse grid as shares of the whole width

Floats = npt.NDArray[np.float64]


def pairs_to_time(inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of widths that are timed, out of all pairs of these (ascending) widths."""
    if len(inputs) * len(outputs) <= FEW:
        return [(i, o) for i in inputs for o in outputs]
    cross = [*((i, outputs[-1]) for i in inputs), *((inputs[-1], o) for o in outputs[:-1])]
    inside = [(i, o) for i in coarse(inputs) for o in coarse(outputs)]
    return list(dict.fromkeys([*cross, *inside]))


def coarse(widths: Sequence[int]) -> list[int]:
    """The widths of the coarse grid: the best aligned ones near a quarter, a half and three quarters; and the whole."""
    best = max((alignment(n) for n in widths[:-1]), default=1)
    aligned = [n for n in widths[:-1] if alignment(n) == best]
    nearest = {min(aligned, key=lambda n: abs(n - share * widths[-1])) for share in COARSE} if aligned else set()
    return [*sorted(nearest), widths[-1]]


def complete(inputs: Sequence[int], outputs: Sequence[int], timed: Mapping[tuple[int, int], float]) -> Floats:
    """Seconds [inputs, outputs] from the times of the pairs that `pairs_to_time` names."""
    across = np.array([timed[i, outputs[-1]] for i in inputs])
    down = np.array([timed[inputs[-1], o] for o in outputs])
    grid = np.outer(across, down) / across[-1]
    if all((i, o) in timed for i in inputs for o in outputs):
        return np.array([[timed[i, o] for o in outputs] for i in inputs])
    rows, columns = coarse(inputs), coarse(outputs)
    places = [[(inputs.index(i), outputs.index(o)) for o in columns] for i in rows]
    known = np.array([[timed[i, o] for o in columns] for i in rows])
    correction = known / np.array([[grid[place] for place in row] for row in places])
    along = np.array([np.interp(outputs, columns, row) for row in correction])  # [rows, outputs]
    whole: Floats = grid * np.array([np.interp(inputs, rows, column) for column in along.T]).T
    return whole
