"""The metric `rebuilt` beside every choice solved anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import secateur as sc
from tests.repairing.test_layer_solve import chain
from tests.repairing.test_repair import conv, pictures, seeded, twins

RIDGE = 1e-2  # default of the metric


@torch.no_grad()
def test_channels_go_in_the_order_in_which_re_solved_readers_miss_them_least() -> None:
    """Every choice at every step solved afresh: tr((W - W') H (W - W')') for the best W' on what is left."""
    model, images = chain(), pictures(40, side=6)
    graph = sc.trace(model, images[:1])
    x = F.unfold(F.relu(model[0](images)), 3).transpose(1, 2).reshape(-1, 54).numpy()
    covariance = np.cov(x.T, bias=True)
    shifted = covariance + RIDGE * np.diag(covariance).mean() * np.eye(54)
    weight = model[2].weight.flatten(1).numpy()
    weight = weight / np.sqrt(np.diag(weight @ covariance @ weight.T))[:, None]

    def error(channels: list[int]) -> float:
        left = np.array([9 * c + t for c in channels for t in range(9)], dtype=int)
        gap = weight.copy()
        if len(left):
            gap[:, left] -= weight @ shifted[:, left] @ np.linalg.inv(shifted[np.ix_(left, left)])
        return float(np.trace(gap @ shifted @ gap.T))

    left, want = list(range(6)), np.zeros(6)
    while left:
        gone = min(left, key=lambda c: error([i for i in left if i != c]))
        left.remove(gone)
        want[gone] = error(left)
    scores = sc.score(graph, sc.repair_each(graph, images), "rebuilt")
    np.testing.assert_allclose(scores.values["0:out"], want, rtol=1e-8)
    assert scores.num_images == 40


def test_a_channel_that_another_one_can_stand_for_goes_first() -> None:
    """Twins carry as much as the others: only a metric that knows of rebuilding sees that one of each pair is idle."""
    model = seeded(lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), conv(8, 6, groups=2)))
    graph = sc.trace(model, pictures(1))
    values = sc.score(graph, sc.repair_each(graph, pictures(40)), "rebuilt").values["0:out"]
    assert len(values) == 8
    plain = seeded(lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), conv(8, 5)))
    graph = sc.trace(plain, pictures(1))
    order = sc.score(graph, sc.repair_each(graph, pictures(40)), "rebuilt").order("0:out")
    assert {int(c) % 4 for c in order[:4]} == {0, 1, 2, 3}  # one of each pair before any pair is gone


@torch.no_grad()
def test_the_inputs_of_a_very_wide_reader_are_taken_as_unrelated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.scoring.reader_inputs.WIDEST", 53)
    model, images = chain(), pictures(40, side=6)
    x = F.unfold(F.relu(model[0](images)), 3).transpose(1, 2).reshape(-1, 54).numpy()
    weight, variances = model[2].weight.flatten(1).numpy(), x.var(0)
    share = (weight**2 / (weight**2 @ variances)[:, None]).sum(0) * (variances + RIDGE * variances.mean())
    alone = share.reshape(6, 9).sum(1)
    want = np.zeros(6)
    want[np.argsort(alone)] = np.sort(alone).cumsum()
    graph = sc.trace(model, images[:1])
    got = sc.score(graph, sc.repair_each(graph, images), "rebuilt").values["0:out"]
    np.testing.assert_allclose(got, want, rtol=1e-8)
