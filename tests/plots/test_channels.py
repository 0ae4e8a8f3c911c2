"""Figs. 3 and 7: maps against plain hooks, scores and averages by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import prunus as pr
from prunus import studies
from prunus.errors import ScoreError
from prunus.plots.channels import discriminant_axes, nearest_to_own_class, principal_axes
from prunus.plots.style import metric_name
from tests.plots.test_choices import EXAMPLE, entering
from tests.run.toys import HOLDOUT, TRAIN, trained


def test_averages_are_over_the_strongest() -> None:
    model = trained()
    graph = pr.trace(model, EXAMPLE)
    found = studies.channels_shown(graph, TRAIN, HOLDOUT, [3, 1], layer="conv1", top=5, skip=1, num_images=None)
    images, labels = (torch.cat(parts) for parts in zip(*HOLDOUT, strict=True))
    second = [int(torch.nonzero(labels == c)[1, 0]) for c in (3, 1)]
    maps = entering(model, "conv2", images[second]).numpy()  # [2, 24, 6, 6]
    norms = model.conv1.weight.detach().abs().sum((1, 2, 3)).numpy()  # type: ignore[union-attr,operator]
    by_hand = {"l1": norms, "gsd": pr.score(graph, TRAIN, metric="gsd").values["conv1:out"]}
    assert list(found.averages) == ["l1", "bn_scale", "fpgm", "di", "gsd"]
    for metric, values in by_hand.items():
        best = np.argsort(values)[::-1][:5]
        assert found.strongest[metric] == tuple(best)
        assert found.averages[metric] == pytest.approx(maps[:, best].mean(1), abs=1e-5)
        assert found.scores[metric] == pytest.approx(tuple(values), rel=1e-5)
    loud = [c for c in np.argsort(by_hand["gsd"]) if np.ptp(maps[:, c]) > 0]
    assert (found.weak, found.strong) == (loud[0], loud[-1])
    assert np.array_equal(found.weak_maps, maps[:, loud[0]]) and np.array_equal(found.strong_maps, maps[:, loud[-1]])
    assert found.notes == (  # no norm comes between conv1 and conv2 there
        "These channels pass through no batch norm of their own: the filters' L2 norm is used instead.",
    )
    assert len(graph.units) == 4  # the view on one unit is not the caller's graph


def test_metrics_may_have_options() -> None:
    graph = pr.trace(trained(), EXAMPLE)
    words: dict[str, Any] = {"layer": "conv1", "top": 3, "num_images": None}
    found = studies.channels_shown(graph, TRAIN, HOLDOUT, [0], by="gsd:ridge=0", metrics=("gsd:ridge=9", "l1"), **words)
    scores = pr.score(graph, TRAIN, metric="gsd", ridge=9).values["conv1:out"]
    assert found.strongest["gsd:ridge=9"] == tuple(np.argsort(scores)[::-1][:3])
    assert metric_name("gsd:ridge=9") == "G-SD, ridge=9" and metric_name("act_variance") == "act variance"
    for wrong in ({"metrics": ("gsd:rigde=9",)}, {"by": "gsd:rigde=9"}):
        with pytest.raises(ScoreError, match="no option 'rigde'"):
            studies.channels_shown(graph, TRAIN, HOLDOUT, [0], **words, **wrong)
    with pytest.raises(ScoreError, match="no option 'rigde'"):
        studies.separation(graph, TRAIN, HOLDOUT, [0, 1], layer="conv1", metric="gsd:rigde=0")


# -- a weak and a strong channel (Fig. 1)


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
    found = principal_axes(x)(x)
    same_up_to_sign(found, (x - x.mean(0)) @ vectors[:, np.argsort(-values)[:2]])
    assert found.var(0, ddof=1) == pytest.approx(np.sort(values)[::-1][:2])
    in_a_line = np.arange(20.0)[:, None] * np.ones(9)
    assert not principal_axes(in_a_line)(in_a_line)[:, 1].any()


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


def test_separation_shows_the_maps_and_their_projections() -> None:
    model = trained()
    found = studies.separation(
        pr.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1, 2, 3], layer="conv1", each=2, points=20, num_images=None
    )
    images, labels = (torch.cat(parts) for parts in zip(*HOLDOUT, strict=True))
    places = [torch.nonzero(labels == c)[:20, 0] for c in range(4)]
    maps = entering(model, "conv2", images)  # [N, 24, 6, 6]
    values = pr.score(pr.trace(model, EXAMPLE), TRAIN, metric="gsd").values["conv1:out"]
    loud = [c for c in np.argsort(values) if maps[torch.cat([p[:2] for p in places]), c].unique().numel() > 1]
    assert (found.weak.channel, found.strong.channel) == (loud[0], loud[-1])
    assert found.silent == tuple(sorted(set(range(24)) - set(loud)))
    for seen in (found.weak, found.strong):
        assert seen.score == pytest.approx(values[seen.channel])
        for c in range(4):
            assert np.array_equal(seen.maps[c], maps[places[c][:2], seen.channel].numpy())
        flat = maps[torch.cat(places), seen.channel].flatten(1).double().numpy()
        _, _, rows = np.linalg.svd(flat[::2] - flat[::2].mean(0))  # half to fit, half to draw
        expected = (flat[1::2] - flat[::2].mean(0)) @ rows[:2].T
        same_up_to_sign(seen.projections["PCA"].points, expected)
        assert set(seen.projections) == {"PCA", "LDA"}
    assert np.array_equal(found.labels, np.repeat(np.arange(4), 10))
    given = studies.separation(
        pr.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1], layer="conv1", weak=7, strong=7, each=1, points=4
    )
    assert given.weak.channel == given.strong.channel == 7
    assert set(given.weak.projections) == {"PCA"}  # two classes have one discriminant only
    with pytest.raises(ScoreError, match="0 to 23, but not 24"):
        studies.separation(pr.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1], layer="conv1", weak=24)
