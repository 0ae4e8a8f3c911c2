"""Layers for which there are too few images to fit their weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

ROWS_PER_WEIGHT = 2  # with fewer rows for each weight of a filter, a small ridge fits noise


@dataclass(frozen=True)
class TooFewImages:
    """A layer, and the number of images that it needs."""

    layer: str
    weights_per_filter: int
    rows_per_image: int
    num_images: int


def too_few_images(layer: str, weights_per_filter: int, rows: int, num_images: int) -> TooFewImages | None:
    """What the layer needs if `rows` rows of `num_images` images are too few; None if they are enough."""
    if rows >= ROWS_PER_WEIGHT * weights_per_filter:
        return None
    needed = math.ceil(ROWS_PER_WEIGHT * weights_per_filter * num_images / rows)
    return TooFewImages(layer, weights_per_filter, rows // num_images, needed)


def warn_of_few_images(num_images: int, few: Sequence[TooFewImages], consequence: str) -> None:
    """Log how many images are needed."""
    if not few:
        return
    worst = max(few, key=lambda one: one.num_images)
    log.warning(
        "%d images are too few for %d of the layers: %s has %d weights per filter, an image gives it %d %s, and it "
        "needs at least %d images. %s",
        num_images,
        len(few),
        worst.layer,
        worst.weights_per_filter,
        worst.rows_per_image,
        "row" if worst.rows_per_image == 1 else "rows",
        worst.num_images,
        consequence,
    )
