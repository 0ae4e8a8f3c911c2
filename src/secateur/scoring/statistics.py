"""Statistics of every unit from one pass over the data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secateur.channels.units import Indices, Reader
from secateur.errors import ScoreError
from secateur.scoring.moments import ClassMoments

log = logging.getLogger(__name__)
NAMED = 10  # number of classes that a message names


@dataclass(frozen=True, eq=False)
class TapMoments:
    """Moments of some or all of a unit's channels in the tensor that enters some of its readers."""

    channels: Indices  # [n]
    readers: tuple[Reader, ...]
    moments: ClassMoments  # [K, n]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Class moments of every unit at each of its taps. Classes with fewer than two images are left out."""

    num_images: int
    classes: tuple[int, ...]
    units: Mapping[str, tuple[TapMoments, ...]]
    notes: tuple[str, ...] = ()


def usable_classes(images: Sequence[int]) -> tuple[int, ...]:
    """Classes with at least two images, given the number of images of each. Fewer than two classes are an error."""
    kept = tuple(c for c, n in enumerate(images) if n >= 2)
    none = [c for c, n in enumerate(images) if n == 0]
    one = [c for c, n in enumerate(images) if n == 1]
    left_out = [
        f"{_named(which)} {words}" for which, words in ((none, "without images"), (one, "with one image")) if which
    ]
    if len(kept) < 2:
        why = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise ScoreError(
            f"scores need at least two classes with two images each, and there {'is one' if kept else 'is none'}{why}. "
            "Use more images, or shuffle them before taking the first ones"
        )
    if left_out:
        log.warning("left out of the scores: %s", ", ".join(left_out))
    return kept


def _named(classes: Sequence[int]) -> str:
    rest = f" and {len(classes) - NAMED} more" if len(classes) > NAMED else ""
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(map(str, classes[:NAMED]))}{rest}"
