"""Kept channels of single units: checks, and the smallest addition that makes them fit the blocks of a unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secateur.channels.units import Unit
from secateur.errors import PlanError


def checked_indices(name: str, width: int, kept: Sequence[int]) -> tuple[int, ...]:
    """Kept channels as an ascending tuple. Raises PlanError unless they are distinct channels of the unit."""
    array = np.asarray(kept)
    if array.size == 0:
        raise PlanError(f"unit {name!r} would keep none of its {width} channels; keep at least one")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise PlanError(f"unit {name!r}: kept channels must be a list of whole numbers, got {kept!r:.80}")
    if array.min() < 0 or array.max() >= width:
        wrong = int(array.min()) if array.min() < 0 else int(array.max())
        raise PlanError(f"unit {name!r} has channels 0 to {width - 1}; {wrong} is out of range")
    unique, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise PlanError(f"unit {name!r}: channel {int(unique[counts > 1][0])} is kept twice; name each channel once")
    return tuple(unique.tolist())


def checked_kept(unit: Unit, kept: Sequence[int]) -> tuple[int, ...]:
    """Kept channels as an ascending tuple. Raises PlanError also if they do not fit the blocks of the unit."""
    indices = checked_indices(unit.name, unit.width, kept)
    counts = np.bincount(unit.blocks[list(indices)], minlength=unit.granule)
    if (counts != counts[0]).any():
        fewest, most = int(counts.argmin()), int(counts.argmax())
        raise PlanError(
            f"unit {unit.name!r} has {unit.granule} blocks, and the same number of channels must be kept in each: "
            f"{counts[fewest]} of channels {_block(unit, fewest)} are kept, but {counts[most]} of channels "
            f"{_block(unit, most)}. graph.balance(keep) adds the missing channels."
        )
    return indices


def balanced(unit: Unit, kept: Sequence[int]) -> tuple[int, ...]:
    """`kept` and the fewest further channels such that the same number is kept in each block of the unit."""
    chosen = np.zeros(unit.width, dtype=bool)
    chosen[list(checked_indices(unit.name, unit.width, kept))] = True
    most = max(1, int(np.bincount(unit.blocks[chosen], minlength=unit.granule).max()))
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        missing = most - int(chosen[inside].sum())
        chosen[inside[~chosen[inside]][:missing]] = True
    return tuple(np.flatnonzero(chosen).tolist())


def some(names: Sequence[str], limit: int = 6) -> str:
    """The first few names of a list, for messages."""
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")


def _block(unit: Unit, block: int) -> str:
    return some([str(i) for i in np.flatnonzero(unit.blocks == block)], limit=4)
