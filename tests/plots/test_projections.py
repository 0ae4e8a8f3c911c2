"""Projections against numpy and scipy on the plain definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from prunus.plots.separation import discriminant_axes, nearest_to_own_class, principal_axes


def blobs(images: int, pixels: int, classes: int = 4) -> tuple[Any, Any]:
    """Classes around means of their own, with pixels that depend on each other, one of which never varies."""
    draw = np.random.default_rng(5)
    labels = np.arange(images) % classes
    mixing = draw.normal(size=(pixels, pixels))
    x = (draw.normal(size=(images, pixels)) + 1.5 * draw.normal(size=(classes, pixels))[labels]) @ mixing
    x[:, 3] = 7.0
    return x, labels


def same_up_to_sign(a: Any, b: Any) -> None:
    signs = np.sign((a * b).sum(0))
    assert a == pytest.approx(b * signs, rel=1e-6, abs=1e-8 * np.abs(b).max())


def test_principal_components_are_those_of_the_covariance() -> None:
    x, _ = blobs(200, 9)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    axes = principal_axes(x)
    same_up_to_sign(axes.directions, vectors[:, np.argsort(-values)[:2]])
    assert axes(x).var(0, ddof=1) == pytest.approx(np.sort(values)[::-1][:2])
    assert (axes.directions[np.abs(axes.directions).argmax(0), [0, 1]] > 0).all()  # always facing the same way


def fisher(x: Any, labels: Any) -> Any:
    """x on the two directions with the largest w^T S_B w / w^T S_W w, by scipy's generalised eigenvectors."""
    means = np.stack([x[labels == c].mean(0) for c in range(4)])[labels]
    within, between = np.cov((x - means).T), np.cov(means.T)
    _, vectors = scipy.linalg.eigh(between, within)
    return (x - x.mean(0)) @ vectors[:, [-1, -2]]


def test_discriminants_maximise_the_ratio_of_scatters() -> None:
    x, labels = blobs(200, 9)
    found = discriminant_axes(x, labels)(x)
    expected = fisher(np.delete(x, 3, 1), labels)  # without the pixel that never varies, which has no scatter
    same_up_to_sign(found / found.std(0), expected / expected.std(0))
    inside = found - np.stack([found[labels == c].mean(0) for c in range(4)])[labels]
    assert np.corrcoef(inside.T) == pytest.approx(np.eye(2), abs=1e-9)
    assert inside[:, 0].std() == pytest.approx(inside[:, 1].std())  # in units of the spread within classes


def test_more_pixels_than_images_are_reduced_first() -> None:
    x, labels = blobs(60, 100)
    left, spread, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    components = (60 - 4) // 4
    expected = fisher(left[:, :components] * spread[:components], labels)
    found = discriminant_axes(x, labels)(x)
    same_up_to_sign(found / found.std(0), expected / expected.std(0))


def test_maps_that_never_vary_stay_in_one_point() -> None:
    x, labels = np.full((20, 9), 2.0), np.arange(20) % 4
    for axes in (principal_axes(x), discriminant_axes(x, labels)):
        assert not axes(x).any()


def test_nearest_to_the_own_class() -> None:
    fitted, labels = np.array([[0.0, 0], [0, 2], [10, 0], [10, 2]]), np.array([3, 3, 8, 8])
    drawn = np.array([[1.0, 1], [9, 1], [4, 1], [6, 9]])
    assert nearest_to_own_class(fitted, labels, drawn, np.array([3, 8, 8, 8])) == 0.75
