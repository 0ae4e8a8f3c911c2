"""The figures of channels: maps against plain hooks, scores and averages by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import prunus as sc
from prunus import studies
from prunus.errors import ScoreError
from prunus.plots.style import metric_name
from tests.plots.test_feature_maps import entering
from tests.plots.test_projections import same_up_to_sign
from tests.run.toys import HOLDOUT, TRAIN, trained

EXAMPLE = torch.zeros(1, 3, 6, 6)


@pytest.fixture(scope="module")
def gsd() -> Any:
    return sc.score(sc.trace(trained(), EXAMPLE), TRAIN, metric="gsd").values


def test_separation_shows_the_maps_and_their_projections(gsd: Any) -> None:
    model = trained()
    found = studies.separation(
        sc.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1, 2, 3], layer="conv1", each=2, points=20, num_images=None
    )
    images, labels = (torch.cat(parts) for parts in zip(*HOLDOUT, strict=True))
    places = [torch.nonzero(labels == c)[:20, 0] for c in range(4)]
    maps = entering(model, "conv2", images)  # [N, 24, 6, 6]
    values = gsd["conv1:out"]
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
        sc.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1], layer="conv1", weak=7, strong=7, each=1, points=4
    )
    assert given.weak.channel == given.strong.channel == 7
    assert set(given.weak.projections) == {"PCA"}  # two classes have one discriminant only
    with pytest.raises(ScoreError, match="0 to 23, but not 24"):
        studies.separation(sc.trace(model, EXAMPLE), TRAIN, HOLDOUT, [0, 1], layer="conv1", weak=24)


def test_averages_are_over_the_strongest(gsd: Any) -> None:
    model = trained()
    graph = sc.trace(model, EXAMPLE)
    found = studies.channels_shown(graph, TRAIN, HOLDOUT, [3, 1], layer="conv1", top=5, skip=1, num_images=None)
    images, labels = (torch.cat(parts) for parts in zip(*HOLDOUT, strict=True))
    second = [int(torch.nonzero(labels == c)[1, 0]) for c in (3, 1)]
    maps = entering(model, "conv2", images[second]).numpy()  # [2, 24, 6, 6]
    norms = model.conv1.weight.detach().abs().sum((1, 2, 3)).numpy()  # type: ignore[union-attr,operator]
    by_hand = {"l1": norms, "gsd": gsd["conv1:out"]}
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


def test_metrics_of_the_averages_may_have_options() -> None:
    graph = sc.trace(trained(), EXAMPLE)
    words: dict[str, Any] = {"layer": "conv1", "top": 3, "num_images": None}
    found = studies.channels_shown(graph, TRAIN, HOLDOUT, [0], by="gsd:ridge=0", metrics=("gsd:ridge=9", "l1"), **words)
    scores = sc.score(graph, TRAIN, metric="gsd", ridge=9).values["conv1:out"]
    assert found.strongest["gsd:ridge=9"] == tuple(np.argsort(scores)[::-1][:3])
    assert metric_name("gsd:ridge=9") == "G-SD, ridge=9" and metric_name("act_variance") == "act variance"
    with pytest.raises(ScoreError, match="no option 'rigde'"):
        studies.channels_shown(graph, TRAIN, HOLDOUT, [0], metrics=("gsd:rigde=9",), **words)
