"""Which pairs of widths of a layer are timed, and how the others follow from them.

A layer has many pairs of numbers of inputs and outputs. Timed are the cross (every number of inputs with all outputs,
every number of outputs with all inputs), where all steps of the kernels show, and a coarse grid inside. For other pairs

    seconds(i, o) = seconds(i, all) * seconds(all, o) / seconds(all, all) * correction(i, o)

with the correction that makes this true on the coarse grid, interpolated between its widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

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
    """The widths of the coarse grid, ascending: multiples of 4 near a quarter, a half and three quarters; an odd width
    near the half; and the whole. Widths without multiples of 4 have fewer."""
    chosen = {widths[-1]}
    for shares, fits in ((COARSE, _is_aligned), (COARSE[1:2], _is_odd)):
        among = [n for n in widths[:-1] if fits(n)]
        chosen |= {min(among, key=lambda n: abs(n - share * widths[-1])) for share in shares if among}
    return sorted(chosen)


def complete(inputs: Sequence[int], outputs: Sequence[int], timed: Mapping[tuple[int, int], float]) -> Floats:
    """Seconds [inputs, outputs] from the times of the pairs that `pairs_to_time` names."""
    if all((i, o) in timed for i in inputs for o in outputs):
        return np.array([[timed[i, o] for o in outputs] for i in inputs])
    across = np.array([timed[i, outputs[-1]] for i in inputs])
    down = np.array([timed[inputs[-1], o] for o in outputs])
    grid = np.outer(across, down) / across[-1]
    rows, columns = coarse(inputs), coarse(outputs)
    product = grid[np.ix_([inputs.index(i) for i in rows], [outputs.index(o) for o in columns])]
    correction = np.array([[timed[i, o] for o in columns] for i in rows]) / product
    whole: Floats = grid * (_between(inputs, rows) @ correction @ _between(outputs, columns).T)
    return whole


def _between(widths: Sequence[int], rough: Sequence[int]) -> Floats:
    """Shares of the coarse widths in the correction at each width [widths, coarse]; each row sums to 1.

    A multiple of 4 lies between coarse multiples of 4 and the whole width. Other widths are like the odd coarse width.
    """
    found = np.zeros((len(widths), len(rough)))
    odd = [place for place, n in enumerate(rough[:-1]) if _is_odd(n)]
    aligned = [place for place in range(len(rough)) if place not in odd]
    for row, width in zip(found, widths, strict=True):
        if width == rough[-1] or _is_aligned(width) or not odd:
            row[aligned] = [
                np.interp(width, [rough[p] for p in aligned], np.eye(len(aligned))[k]) for k in range(len(aligned))
            ]
        else:
            row[odd[0]] = 1.0
    return found


def _is_aligned(width: int) -> bool:
    return width % 4 == 0


def _is_odd(width: int) -> bool:
    return width % 2 == 1
