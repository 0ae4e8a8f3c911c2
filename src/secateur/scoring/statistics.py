"""What one pass over the data has found out about every unit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secateur.channels.units import Indices, Reader
from secateur.errors import ScoreError
from secateur.scoring.moments import ClassMoments

log = logging.getLogger(__name__)
NAMED = 10  # classes that a message names before it only counts the rest


@dataclass(frozen=True, eq=False)
class TapMoments:
    """Some or all of a unit's channels as they enter the readers that share one tensor."""

    channels: Indices  # [n]
    readers: tuple[Reader, ...]
    moments: ClassMoments  # [K, n]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Class moments of every unit, at each of its taps. Classes with fewer than two images are left out."""

    num_images: int
    classes: tuple[int, ...]
    units: Mapping[str, tuple[TapMoments, ...]]
    notes: tuple[str, ...] = ()


def usable_classes(images: Sequence[int]) -> tuple[int, ...]:
    """Classes with two images or more, given how many each has. Names those left out; fewer than two is an error."""
    kept = tuple(c for c, n in enumerate(images) if n >= 2)
    none = [c for c, n in enumerate(images) if n == 0]
    one = [c for c, n in enumerate(images) if n == 1]
    left_out = [
        f"{_named(which)} {words}" for which, words in ((none, "without images"), (one, "with one image")) if which
    ]
    if len(kept) < 2:
        why = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise ScoreError(
            f"scores that tell classes apart need two classes with two images each, and there "
            f"{'is one' if kept else 'is none'}{why}. Take more images, or shuffle them before taking the first few"
        )
    if left_out:
        log.warning("left out of the scores: %s", ", ".join(left_out))
    return kept


def _named(classes: Sequence[int]) -> str:
    rest = f" and {len(classes) - NAMED} more" if len(classes) > NAMED else ""
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(map(str, classes[:NAMED]))}{rest}"
