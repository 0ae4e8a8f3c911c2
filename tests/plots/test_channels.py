"""Figs. 3 and 7: maps against plain hooks, scores and averages by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import prunus as pr
from prunus import studies
from prunus.errors import ScoreError
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
