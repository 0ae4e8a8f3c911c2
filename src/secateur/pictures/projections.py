"""Flattened feature maps in two dimensions: principal components and linear discriminants, by scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
TINY = 1e-7  # directions whose spread is below this fraction of the largest are rounding noise


@dataclass(frozen=True, eq=False)
class Axes:
    """Directions to project on: x -> (x - centre) @ directions."""

    centre: Array  # [d]
    directions: Array  # [d, count]

    def __call__(self, x: Array) -> Array:
        """[N, d] -> [N, count]."""
        return (x - self.centre) @ self.directions


def principal_axes(x: Array, count: int = 2) -> Axes:
    """The directions of the largest variance of x [N, d].

    If x varies in fewer than `count` directions, the other directions are zero.
    """
    centre = x.mean(0)
    if not np.any(x - centre):  # scikit-learn would divide 0 by 0
        return Axes(centre, np.zeros((x.shape[1], count)))
    found = PCA(min(count, *x.shape), svd_solver="full").fit(x)
    real = found.singular_values_ > TINY * found.singular_values_[0]
    return Axes(found.mean_, _padded(found.components_[real].T, count))


def discriminant_axes(x: Array, labels: Labels, count: int = 2) -> Axes:
    """Fisher's directions: class means are farthest apart along them, relative to the spread within classes.

    They maximise w^T S_B w / w^T S_W w, with w^T S_W w = 1. Maps with many pixels are first reduced to (N - K) / 4
    principal components (N images of K classes), because N points in more than N dimensions can always be separated.
    """
    classes, of_class = np.unique(labels, return_inverse=True)
    components = min(max(count, (len(x) - len(classes)) // 4), *x.shape)
    reduced = principal_axes(x, components)
    real = np.abs(reduced.directions).max(0) > 0
    z = reduced(x)[:, real]  # [N, r]
    means = np.stack([z[of_class == c].mean(0) for c in range(len(classes))])  # [K, r]
    if not np.any(z - means[of_class]):  # no spread within classes to compare with
        return Axes(reduced.centre, np.zeros((x.shape[1], count)))
    found = LinearDiscriminantAnalysis(solver="svd", tol=TINY).fit(z, of_class)
    wanted = min(count, found.scalings_.shape[1], len(classes) - 1)
    return Axes(reduced.centre, _padded(reduced.directions[:, real] @ found.scalings_[:, :wanted], count))


def _padded(directions: Array, count: int) -> Array:
    """`count` directions [d, count], with zeros if there are fewer.

    Each has the sign that makes its largest component positive, so that a picture does not flip by chance.
    """
    largest = np.abs(directions).argmax(0)
    signed: Any = directions * np.sign(directions[largest, np.arange(directions.shape[1])])
    return np.pad(signed, ((0, 0), (0, count - directions.shape[1])))


def nearest_to_own_class(fitted: Array, its_labels: Labels, drawn: Array, labels: Labels) -> float:
    """Fraction of the `drawn` points that are nearest to the mean of their own class among the `fitted` points."""
    classes = np.unique(its_labels)
    means = np.stack([fitted[its_labels == c].mean(0) for c in classes])  # [K, 2]
    distances = ((drawn[:, None] - means) ** 2).sum(2)  # [M, K]
    return float((classes[distances.argmin(1)] == labels).mean())
