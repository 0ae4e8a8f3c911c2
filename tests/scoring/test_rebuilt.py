"""The metric `rebuilt` beside every choice solved anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateur as sc
from tests.repairing.test_layer_solve import chain
from tests.repairing.test_repair import conv, pictures, seeded, twins

RIDGE = 1e-2  # default of the metric


class Naive:
    """The chain's first unit, read by a convolution with 54 inputs and 4 outputs: everything written out."""

    def __init__(self) -> None:
        self.model, self.images = chain(), pictures(40, side=6)
        self.held = torch.arange(40) % 5 == 4  # these 8 images judge
        self.x = F.unfold(F.relu(self.model[0](self.images)), 3).transpose(1, 2)  # [40, 4, 54]
        rows = self.x[~self.held].reshape(-1, 54).numpy()
        self.mean, self.covariance = rows.mean(0), np.cov(rows.T, bias=True)
        self.weight = self.model[2].weight.flatten(1).detach().numpy()

    def answer(self, weight: np.ndarray) -> Tensor:
        """The network's outputs for the judges, with other weights of the reader but the same mean outputs."""
        constant = torch.from_numpy((self.weight - weight) @ self.mean)
        y = self.x[self.held] @ torch.from_numpy(weight).T + constant
        return self.model[3:](y.transpose(1, 2).reshape(8, 4, 2, 2))

    def stakes(self) -> np.ndarray:
        """Products of the gradients of a random combination of outputs, through the layers behind the reader."""
        y = self.model[2](F.relu(self.model[0](self.images[self.held]))).detach().requires_grad_(True)
        z = self.model[3:](y)
        draw = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).double()
        (z / z.std(correction=0).detach() * draw).sum().backward()
        rows = y.grad.movedim(1, -1).reshape(-1, 4).numpy()
        return rows.T @ rows

    def change(self, weight: np.ndarray) -> float:
        before = self.answer(self.weight)
        return float((self.answer(weight) - before).square().mean() / before.var(correction=0))

    def ridge(self) -> float:
        """Eqn. 23 of Chen et al. 2010, with 32 images of 4 rows each."""
        p, n, trace = 54, 128, np.trace(self.covariance)
        square = np.trace(self.covariance @ self.covariance)
        share = ((1 - 2 / p) * square + trace**2) / ((n + 1 - 2 / p) * (square - trace**2 / p))
        return max(RIDGE, share / (1 - share))


@torch.no_grad()
def test_channels_go_in_the_order_in_which_re_solved_readers_miss_them_least() -> None:
    """Every choice at every step solved afresh: tr(G (W - W') H (W - W')') for the best W' on what is left."""
    naive = Naive()
    weight, covariance = naive.weight, naive.covariance
    shifted = covariance + naive.ridge() * np.diag(covariance).mean() * np.eye(54)
    with torch.enable_grad():
        stakes = naive.stakes()

    def solved(channels: list[int]) -> np.ndarray:
        left = np.array([9 * c + t for c in channels for t in range(9)], dtype=int)
        best = np.zeros_like(weight)
        if len(left):
            best[:, left] = weight @ shifted[:, left] @ np.linalg.inv(shifted[np.ix_(left, left)])
        return best

    def error(channels: list[int]) -> float:
        gap = weight - solved(channels)
        return float(np.trace(stakes @ gap @ shifted @ gap.T))

    left, want = list(range(6)), np.zeros(6)
    while left:
        gone = min(left, key=lambda c: error([i for i in left if i != c]))
        left.remove(gone)
        want[gone] = error(left)
        if len(left) == 3:
            scale = naive.change(solved(left)) / error(left)
    assert naive.ridge() > RIDGE  # few rows: the covariance is shrunk
    graph = sc.trace(naive.model, naive.images[:1])
    scores = sc.score(graph, sc.repair_each(graph, naive.images), "rebuilt")
    np.testing.assert_allclose(scores.values["0:out"], want * scale, rtol=1e-6)
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
    naive = Naive()
    with torch.enable_grad():
        stakes = naive.stakes()
    variances = np.diag(naive.covariance)
    share = np.diag(naive.weight.T @ stakes @ naive.weight) * (variances + RIDGE * variances.mean())
    alone = share.reshape(6, 9).sum(1)
    order = np.argsort(alone)
    cut = naive.weight.copy()
    cut.reshape(4, 6, 9)[:, order[:3]] = 0
    want = np.zeros(6)
    want[order] = alone[order].cumsum() * naive.change(cut) / alone[order][:3].sum()
    graph = sc.trace(naive.model, naive.images[:1])
    got = sc.score(graph, sc.repair_each(graph, naive.images), "rebuilt").values["0:out"]
    np.testing.assert_allclose(got, want, rtol=1e-6)


@torch.no_grad()
def test_a_classifier_that_has_seen_few_images_is_not_cut_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Thirty independent features and 20 images: any 20 features can rebuild the rest on these images, on no others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 4)).double()
    images = torch.randn(20, 30, dtype=torch.float64)
    graph = sc.trace(model, images[:1])
    values = np.sort(sc.score(graph, sc.repair_each(graph, images), "rebuilt").values["0:out"])
    assert values[9] > 0.1 * values[29]  # without shrinkage 14 features would go for nearly nothing
    assert "20 images are few" in caplog.text and "1 (16 rows for 30 inputs)" in caplog.text


@torch.no_grad()
def test_the_log_names_the_layers_whose_errors_are_uncertain_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """16 of 20 images do not judge: 144 rows for the convolution of 12 inputs, 16 for the classifier of 20."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 12, 1), nn.Conv2d(12, 20, 1), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(20, 4))
    graph = sc.trace(model, torch.zeros(1, 3, 3, 3))
    sc.score(graph, sc.repair_each(graph, torch.randn(20, 3, 3, 3)), "rebuilt")
    weak = [record.getMessage() for record in caplog.records if "uncertain" in record.getMessage()]
    assert len(weak) == 1 and weak[0].endswith("covariance: 4 (16 rows for 20 inputs)")
    caplog.clear()
    sc.score(graph, sc.repair_each(graph, torch.randn(25, 3, 3, 3)), "rebuilt")  # 20 rows for 20 inputs
    assert "uncertain" not in caplog.text
