"""thinet, cp and rebuilt beside every choice solved anew."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as pr
from prunus.scoring import reader_inputs
from prunus.scoring.evidence import Contributions
from prunus.scoring.metrics import METRICS, rebuild
from prunus.scoring.metrics.rebuild import Elimination
from tests.scoring.toys import Scaled, chain, pictures


def contributions_of(model: nn.Sequential, images: Tensor) -> np.ndarray:
    """[channels, positions x outputs] what each channel of `0:out` adds to the outputs of the next layer."""
    with torch.no_grad():
        hidden = F.relu(model[0](images))
        parts = []
        for channel in range(hidden.shape[1]):
            alone = torch.zeros_like(hidden)
            alone[:, channel] = hidden[:, channel]
            parts.append(F.conv2d(alone, model[2].weight).flatten().double().numpy())
    return np.stack(parts)


def test_thinet_removes_what_changes_least_and_cp_scores_by_the_penalty_that_a_channel_survives() -> None:
    model, images = chain(), pictures(40)
    parts = contributions_of(model, images)
    graph = pr.trace(model, images[:1])
    found = pr.score(graph, pr.repair_each(graph, images), ["thinet", "cp"])
    gone: list[int] = []
    while len(gone) < len(parts):
        left = [c for c in range(len(parts)) if c not in gone]
        gone.append(min(left, key=lambda c: float((parts[[*gone, c]].sum(0) ** 2).sum())))
    assert list(found["thinet"].order("0:out")) == gone and found["thinet"].num_images == 40
    parts = parts / np.sqrt(40 * 4)  # 2 x 2 output positions of each image, sums over outputs
    norms = model[2].weight.detach().double().transpose(0, 1).flatten(1).norm(dim=1).numpy()
    scores = found["cp"].values["0:out"]
    assert (scores > 0).all() and len(set(scores)) == len(scores)
    order = np.sort(scores)
    for low, high in itertools.pairwise(order):
        middle = (low + high) / 2
        assert set(np.flatnonzero(lasso(parts, norms, middle))) == set(np.flatnonzero(scores > middle))
    assert not lasso(parts, norms, order[-1] * 1.001).any()


def lasso(parts: np.ndarray, norms: np.ndarray, penalty: float) -> np.ndarray:
    """Coordinate descent on 1/2 mean |Y - sum b_i Z_i|^2 + penalty |b|_1, with Z_i for weights of norm 1."""
    unit, target = parts / norms[:, None], parts.sum(0)
    gram, pull = unit @ unit.T, unit @ target
    b = np.zeros(len(parts))
    for _ in range(5000):
        for i in range(len(b)):
            rest = pull[i] - gram[i] @ b + gram[i, i] * b[i]
            b[i] = np.sign(rest) * max(abs(rest) - penalty, 0) / gram[i, i]
    return b


def test_cp_tells_the_channels_of_a_wide_layer_apart() -> None:
    """The path of 700 channels has over 500 steps.

    Contributions that are orthogonal are chosen one by one: with d = |X_i W_i|^2 and weights of norm w, the coefficient
    of channel i is (d / w - penalty) / (d / w^2), as long as this is above 0.
    """
    energies = torch.from_numpy(np.random.default_rng(0).uniform(0.5, 2.0, 700))
    norms = torch.linspace(0.5, 1.5, 700, dtype=torch.float64)
    found = METRICS["cp"].score(Contributions("u", torch.diag(energies), norms))
    np.testing.assert_allclose(found, energies / norms, rtol=1e-6)


def test_a_channel_that_does_nothing_goes_first_by_both() -> None:
    model = chain()
    with torch.no_grad():
        model[2].weight[:, 3] = 0
    graph = pr.trace(model, pictures(1))
    seen = pr.repair_each(graph, pictures(20))
    for name in ("thinet", "cp"):
        assert pr.score(graph, seen, name).order("0:out")[0] == 3


def problem(blocks: int, size: int, outputs: int, others: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Correlated inputs, of which the last `others` are in no block, in a random order."""
    draw = np.random.default_rng(seed)
    n = blocks * size + others
    x = draw.normal(size=(4 * n, n)) @ draw.normal(size=(n, n)) * draw.uniform(0.2, 2, size=n)
    moments = x.T @ x / len(x) + 0.1 * np.eye(n)
    columns = draw.permutation(n)[: blocks * size].reshape(blocks, size)
    return draw.normal(size=(outputs, n)), moments, columns


def least_error(weight: np.ndarray, moments: np.ndarray, left: list[int]) -> float:
    """Error of the best weights on the inputs `left`, solved from scratch."""
    best = np.zeros_like(weight)
    if left:
        best[:, left] = weight @ moments[:, left] @ np.linalg.inv(moments[np.ix_(left, left)])
    gap = weight - best
    return float(np.trace(gap @ moments @ gap.T))


@pytest.mark.parametrize("delayed", [1, 5, 128])
@pytest.mark.parametrize(("size", "outputs", "others"), [(1, 3, 0), (1, 40, 2), (4, 3, 3)])
def test_every_removal_adds_what_solving_from_scratch_says(
    size: int, outputs: int, others: int, delayed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "DELAYED", delayed)
    weight, moments, columns = problem(7, size, outputs, others, seed=size + outputs)
    fast = Elimination(*(torch.from_numpy(a) for a in (weight, moments, columns)))
    gone: list[int] = []
    for _ in range(7):
        now = least_error(weight, moments, [i for i in range(len(moments)) if i not in columns[gone]])
        want = np.full(7, np.inf)
        for block in set(range(7)) - set(gone):
            left = [i for i in range(len(moments)) if i not in columns[[*gone, block]]]
            want[block] = least_error(weight, moments, left) - now
        np.testing.assert_allclose(fast.errors.numpy(), want, rtol=1e-8)
        gone.append(int(want.argmin()))
        fast.remove(gone[-1])
    assert bool(torch.isinf(fast.errors).all())


def removed_one_by_one(weight: np.ndarray, moments: np.ndarray, columns: np.ndarray) -> tuple[list[int], list[float]]:
    """The blocks in the order of their removal, and what each adds."""
    fast = Elimination(*map(torch.from_numpy, (weight, moments, columns)))
    order, added = [], []
    for _ in columns:
        order.append(int(fast.errors.argmin()))
        added.append(float(fast.errors[order[-1]]))
        fast.remove(order[-1])
    return order, added


def test_wide_layers_in_float32_give_the_same_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, moments, columns = problem(60, 4, 30, 5, seed=3)
    moments += 0.01 * np.trace(moments) / len(moments) * np.eye(len(moments))  # the ridge of `rebuilt`
    monkeypatch.setattr(rebuild, "WIDE", len(moments) - 1)
    assert Elimination(*(torch.from_numpy(a) for a in (weight, moments, columns)))._inverse.dtype == torch.float32
    order, added = removed_one_by_one(weight, moments, columns)
    gone: list[int] = []
    for block, error in zip(order, added, strict=True):  # from scratch, in float64
        left = [[i for i in range(len(moments)) if i not in columns[some]] for some in (gone, [*gone, block])]
        before, after = (least_error(weight, moments, each) for each in left)
        assert error == pytest.approx(after - before, rel=1e-3)
        gone.append(block)


def test_a_wide_layer_without_a_ridge_stays_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs are almost equal: in float32 the difference that is left would be noise. And a block may be wide."""
    rows = np.random.default_rng(0).normal(size=(4000, 8))
    rows[:, 7] = rows[:, 6] + 1e-4 * rows[:, 7]
    weight, moments, columns = problem(3, 6, 4, 0, seed=1)
    moments[0] *= 1e-9  # precise enough for float64 alone
    moments[:, 0] *= 1e-9
    for case in ((np.eye(8), rows.T @ rows / len(rows), np.arange(8)[:, None]), (weight, moments, columns)):
        monkeypatch.setattr(rebuild, "WIDE", 512)
        want = removed_one_by_one(*case)
        monkeypatch.setattr(rebuild, "WIDE", 4)
        order, added = removed_one_by_one(*case)
        assert order == want[0]
        np.testing.assert_allclose(added, want[1], rtol=1e-9)


def test_moments_that_rounding_has_made_indefinite_are_shifted_a_little() -> None:
    moments = torch.ones(3, 3, dtype=torch.float64) - 1e-12 * torch.eye(3, dtype=torch.float64)
    found = Elimination(torch.ones(1, 3, dtype=torch.float64), moments, torch.arange(3)[:, None])
    assert bool(torch.isfinite(found.errors).all())
    assert float(found.errors.max()) < 1e-3  # each of three equal inputs can be rebuilt from the others


RIDGE = 1e-2  # default of the metric


class Naive:
    """The chain's first unit, read by a convolution with 54 inputs and 4 outputs: everything written out."""

    def __init__(self) -> None:
        self.model, self.images = chain(), pictures(40)
        self.held = torch.arange(40) % 5 == 4  # the 8 probe images
        self.x = F.unfold(F.relu(self.model[0](self.images)), 3).transpose(1, 2)  # [40, 4, 54]
        rows = self.x[~self.held].reshape(-1, 54).numpy()
        self.mean, self.covariance = rows.mean(0), np.cov(rows.T, bias=True)
        self.weight = self.model[2].weight.flatten(1).detach().numpy()

    def answer(self, weight: np.ndarray) -> Tensor:
        """The network's outputs for the probe images, with other weights of the reader but the same mean outputs."""
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
    graph = pr.trace(naive.model, naive.images[:1])
    scores = pr.score(graph, pr.repair_each(graph, naive.images), "rebuilt")
    np.testing.assert_allclose(scores.values["0:out"], want * scale, rtol=1e-6)
    assert scores.num_images == 40


@pytest.mark.parametrize("groups", [1, 2])
def test_a_channel_that_another_one_can_stand_for_goes_first(groups: int) -> None:
    """Twins carry as much as the others: only a metric that knows of rebuilding sees that one of each pair is idle."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=groups)).double().eval()
    with torch.no_grad():
        for parameter in model[0].parameters():  # half of the filters is 0.5 times the other half
            parameter[4:] = 0.5 * parameter[:4]
    graph = pr.trace(model, pictures(1, side=8))
    order = pr.score(graph, pr.repair_each(graph, pictures(40, side=8)), "rebuilt").order("0:out")
    assert len(order) == 8
    if groups == 1:
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
    graph = pr.trace(naive.model, naive.images[:1])
    got = pr.score(graph, pr.repair_each(graph, naive.images), "rebuilt").values["0:out"]
    np.testing.assert_allclose(got, want, rtol=1e-6)


@torch.no_grad()
def test_few_images_cut_nothing_for_nothing_and_the_log_names_the_layers(caplog: pytest.LogCaptureFixture) -> None:
    """Thirty independent features and 20 images: any 20 features can rebuild the rest on these images, on no others.

    16 of 20 images are no probe images: 144 rows for a convolution of 12 inputs, 16 for a classifier of 20.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 4)).double()
    images = torch.randn(20, 30, dtype=torch.float64)
    graph = pr.trace(model, images[:1])
    values = np.sort(pr.score(graph, pr.repair_each(graph, images), "rebuilt").values["0:out"])
    assert values[9] > 0.1 * values[29]  # without shrinkage 14 features would go for nearly nothing
    assert "20 images are few" in caplog.text and "1 (16 rows for 30 inputs)" in caplog.text
    layers = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 20, 1), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(20, 4)
    graph = pr.trace(nn.Sequential(*layers), torch.zeros(1, 3, 3, 3))
    for count, uncertain in ((20, ["4 (16 rows for 20 inputs)"]), (25, [])):
        caplog.clear()
        pr.score(graph, pr.repair_each(graph, torch.randn(count, 3, 3, 3)), "rebuilt")
        texts = [record.getMessage() for record in caplog.records if "uncertain" in record.getMessage()]
        assert [text.partition("covariance: ")[2] for text in texts] == uncertain


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


@pytest.mark.parametrize("width", [6, 60])
def test_scores_do_not_depend_on_the_unit_of_the_activations(width: int) -> None:
    """Also in float32: 60 channels are 540 inputs."""
    want, *others = (
        pr.score(pr.trace(small_network(nn.Conv2d, scale, width), drawn(1)), [drawn(40)], "rebuilt").values["0:out"]
        for scale in (1.0, 1e-9, 1e-20, 1e15)
    )
    assert (want > 0).all()
    for found in others:
        np.testing.assert_allclose(found, want, rtol=2e-2)


def test_units_that_cannot_be_scored_are_named(caplog: pytest.LogCaptureFixture) -> None:
    graph = pr.trace(small_network(Scaled), drawn(1))
    found = pr.score(graph, [drawn(40)], "rebuilt")
    assert list(found.values) == ["2:out"]  # the linear layer reads it
    assert "no scores for 0:out, which stay as they are" in caplog.text


def test_networks_in_bfloat16_are_scored_and_repaired() -> None:
    model = small_network(nn.Conv2d).bfloat16()
    images = drawn(40).bfloat16()
    graph = pr.trace(model, images[:1])
    assert set(pr.score(graph, [images], "rebuilt").values) == {"0:out", "2:out"}
    plan = pr.Plan.of(graph, {"0:out": [0, 2, 4]})
    with torch.no_grad():
        before, cut, solved = (
            m(images).float() for m in (model, pr.prune(graph, plan), pr.repair(graph, plan, images))
        )
    assert float((solved - before).norm()) < 0.8 * float((cut - before).norm())


def test_four_images_are_probed_although_none_is_held_out() -> None:
    """Nothing that the reader computes reaches the output, so no channel is worth anything; the reader's own error,
    which says nothing of the network, would be far from 0."""
    model = small_network(nn.Conv2d)
    with torch.no_grad():
        model[5].weight.zero_()
    for count in (4, 40):
        scores = pr.score(pr.trace(model, drawn(1)), [drawn(count)], "rebuilt")
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


@dataclasses.dataclass
class Answer:
    """What a network may return instead of a tensor."""

    logits: Tensor


class Answering(nn.Sequential):
    def forward(self, x: Tensor) -> Answer:
        return Answer(super().forward(x))


@pytest.mark.parametrize(("kind", "warned"), [(Answering, False), (Branches, False), (OneSize, True)])
def test_any_outputs_are_probed_unless_the_code_takes_one_batch_size(
    kind: type[nn.Sequential], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plain = small_network(nn.Conv2d)
    found, want = (
        pr.score(pr.trace(model, drawn(1)), [drawn(64)], "rebuilt").values["0:out"]
        for model in (kind(*plain).eval(), plain)
    )
    assert ("the network's code depends on the batch size" in caplog.text) == warned
    assert np.allclose(found, want, rtol=1e-4) != warned
