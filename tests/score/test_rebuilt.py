"""The metric `rebuilt` beside every choice solved anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc
from prunus.errors import ScoreError
from prunus.score import reader_inputs
from tests.repair.test_layer_solve import chain
from tests.repair.test_repair import conv, pictures, seeded, twins

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

    def output_weights(self) -> np.ndarray:
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
        output_weights = naive.output_weights()

    def solved(channels: list[int]) -> np.ndarray:
        left = np.array([9 * c + t for c in channels for t in range(9)], dtype=int)
        best = np.zeros_like(weight)
        if len(left):
            best[:, left] = weight @ shifted[:, left] @ np.linalg.inv(shifted[np.ix_(left, left)])
        return best

    def error(channels: list[int]) -> float:
        gap = weight - solved(channels)
        return float(np.trace(output_weights @ gap @ shifted @ gap.T))

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
    monkeypatch.setattr(reader_inputs, "WIDEST", 53)
    naive = Naive()
    with torch.enable_grad():
        output_weights = naive.output_weights()
    variances = np.diag(naive.covariance)
    share = np.diag(naive.weight.T @ output_weights @ naive.weight) * (variances + RIDGE * variances.mean())
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


class Scaled(nn.Conv2d):
    """A convolution that is no linear map with its own weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0.5


def small_network(reader: type[nn.Conv2d], scale: float = 1.0, width: int = 6) -> nn.Sequential:
    """The activations between the layers are multiplied by `scale`, which the second layer undoes."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3), nn.ReLU(), reader(width, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.mul_(scale)
        model[2].weight.div_(scale)
    return model.eval()


def drawn(count: int) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("width", "scale"), [(6, 1e-9), (6, 1e-20), (6, 1e15), (60, 1e-9), (60, 1e-20), (60, 1e15)])
def test_scores_do_not_depend_on_the_unit_of_the_activations(width: int, scale: float) -> None:
    """Also in float32: 60 channels are 540 inputs."""
    found = []
    for factor in (1.0, scale):
        graph = sc.trace(small_network(nn.Conv2d, factor, width), drawn(1))
        found.append(sc.score(graph, [drawn(40)], "rebuilt").values["0:out"])
    np.testing.assert_allclose(found[0], found[1], rtol=2e-2)
    assert (found[0] > 0).all()


def test_units_that_cannot_be_scored_are_named(caplog: pytest.LogCaptureFixture) -> None:
    graph = sc.trace(small_network(Scaled), drawn(1))
    found = sc.score(graph, [drawn(40)], "rebuilt")
    assert list(found.values) == ["2:out"]  # the linear layer reads it
    assert "no scores for 0:out, which stay as they are" in caplog.text


def test_no_unit_that_can_be_scored_is_an_error_with_advice() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), Scaled(6, 4, 3)).eval()
    graph = sc.trace(model, drawn(1))
    with pytest.raises(ScoreError, match=r"no unit can be scored by its readers.*use a metric of activations"):
        sc.score(graph, [drawn(40)], "rebuilt")


def test_networks_in_bfloat16_are_scored_and_repaired() -> None:
    model = small_network(nn.Conv2d).bfloat16()
    images = drawn(40).bfloat16()
    graph = sc.trace(model, images[:1])
    assert set(sc.score(graph, [images], "rebuilt").values) == {"0:out", "2:out"}
    plan = sc.Plan.of(graph, {"0:out": [0, 2, 4]})
    with torch.no_grad():
        before, cut, solved = (
            m(images).float() for m in (model, sc.prune(graph, plan), sc.repair(graph, plan, images))
        )
    assert float((solved - before).norm()) < 0.8 * float((cut - before).norm())


def test_four_images_judge_although_none_is_held_out() -> None:
    """Nothing that the reader computes reaches the output, so no channel is worth anything; the reader's own error,
    which says nothing of the network, would be far from 0."""
    model = small_network(nn.Conv2d)
    with torch.no_grad():
        model[5].weight.zero_()
    for count in (4, 40):
        scores = sc.score(sc.trace(model, drawn(1)), [drawn(count)], "rebuilt")
        assert scores.values["0:out"].max() < 1e-6


class Branches(nn.Sequential):
    """Code that depends on sizes, and works for every number of images."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3 or len(x) > 10_000:
            raise ValueError("three colours, please")
        return super().forward(x)


class OneSize(nn.Sequential):
    """Code that is right for one number of images only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 2 else 2 * super().forward(x)


@pytest.mark.parametrize(("kind", "warned"), [(Branches, False), (OneSize, True)])
def test_code_that_depends_on_sizes_is_judged_unless_it_takes_one_batch_size(
    kind: type[nn.Sequential], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plain = small_network(nn.Conv2d)
    model = kind(*plain).eval()
    found = sc.score(sc.trace(model, drawn(1)), [drawn(64)], "rebuilt").values["0:out"]
    want = sc.score(sc.trace(plain, drawn(1)), [drawn(64)], "rebuilt").values["0:out"]
    assert ("the network's code depends on the batch size" in caplog.text) == warned
    assert np.allclose(found, want, rtol=1e-4) != warned
