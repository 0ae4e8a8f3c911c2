"""Flattened feature maps in two dimensions: principal components and linear discriminants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
TINY = 1e-7  # directions whose spread is below this part of the largest are noise of the arithmetic


@dataclass(frozen=True, eq=False)
class Axes:
    """Directions to look along: x -> (x - centre) @ directions."""

    centre: Array  # [d]
    directions: Array  # [d, count]

    def __call__(self, x: Array) -> Array:
        """[N, d] -> [N, count]."""
        return (x - self.centre) @ self.directions


def principal_axes(x: Array, count: int = 2) -> Axes:
    """The directions of the largest variance of x [N, d]: the first right singular vectors of the centred x.

    Where x has fewer dimensions than `count`, the rest of the directions is zero.
    """
    centre = x.mean(0)
    _, spread, rows = np.linalg.svd(x - centre, full_matrices=False)
    real = int((spread > TINY * max(spread[0], 1e-30)).sum())
    directions = np.zeros((x.shape[1], count))
    directions[:, : min(count, real)] = _facing(rows[: min(count, real)].T)
    return Axes(centre, directions)


def discriminant_axes(x: Array, labels: Labels, count: int = 2) -> Axes:
    """Fisher's directions: those along which class means lie farthest apart, in units of the spread within classes.

    They maximise w^T S_B w / w^T S_W w, found by whitening with S_W and a singular value decomposition of the weighted
    class means there. Maps of more pixels than the images can tell apart are first reduced to a quarter as many
    principal components as there are images to spare; with fewer pixels that changes nothing.
    """
    classes, of_class = np.unique(labels, return_inverse=True)
    spare = max(count, (len(x) - len(classes)) // 4)
    reduced = principal_axes(x, min(spare, *x.shape))
    z = reduced(x)  # [N, r]
    means = np.stack([z[of_class == c].mean(0) for c in range(len(classes))])  # [K, r]
    inside = (z - means[of_class]) / np.sqrt(max(1, len(x) - len(classes)))
    _, spread, rows = np.linalg.svd(inside, full_matrices=False)
    real = spread > TINY * max(spread[0], 1e-30)
    white = rows[real].T / spread[real]  # [r, n]
    weight = np.sqrt(np.bincount(of_class) / len(x))[:, None]
    _, _, between = np.linalg.svd(weight * (means @ white), full_matrices=False)
    found = min(count, len(between), len(classes) - 1)
    directions = np.zeros((x.shape[1], count))
    directions[:, :found] = _facing(reduced.directions @ white @ between[:found].T)
    return Axes(reduced.centre, directions)


def _facing(directions: Array) -> Array:
    """The same directions, each facing so that its largest part is positive: a picture does not flip by chance."""
    if directions.shape[1] == 0:
        return directions
    largest = np.abs(directions).argmax(0)
    turned: Any = directions * np.sign(directions[largest, np.arange(directions.shape[1])])
    return np.asarray(turned)


def told_apart(fitted: Array, its_labels: Labels, drawn: Array, labels: Labels) -> float:
    """Share of the `drawn` points that lie nearest to the mean of their own class among `fitted` points."""
    classes = np.unique(its_labels)
    means = np.stack([fitted[its_labels == c].mean(0) for c in classes])  # [K, 2]
    distances = ((drawn[:, None] - means) ** 2).sum(2)  # [M, K]
    return float((classes[distances.argmin(1)] == labels).mean())
