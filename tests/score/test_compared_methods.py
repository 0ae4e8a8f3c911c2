"""The methods that the paper compares with, beside their definitions written with numpy, scikit-learn and loops."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc
from prunus.errors import ScoreError
from prunus.score.evidence import Contributions, Maps
from prunus.score.gradients import DECAY, divide
from prunus.score.importance import infinite_feature_selection
from prunus.score.metrics import METRICS
from tests.repair.test_layer_solve import chain
from tests.repair.test_repair import pictures
from tests.score.toys import CLASSES, batches, entering, settled

# ------------------------------------------------------------------------------ ThiNet and CP: the next layer's output


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


def test_thinet_removes_what_changes_the_next_output_least() -> None:
    model, images = chain(), pictures(40, side=6)
    parts = contributions_of(model, images)
    gone: list[int] = []
    while len(gone) < len(parts):
        left = [c for c in range(len(parts)) if c not in gone]
        gone.append(min(left, key=lambda c: float((parts[[*gone, c]].sum(0) ** 2).sum())))
    graph = sc.trace(model, images[:1])
    found = sc.score(graph, sc.repair_each(graph, images), "thinet")
    assert list(found.order("0:out")) == gone
    assert found.num_images == 40


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


def test_cp_scores_by_the_penalty_that_a_channel_survives() -> None:
    model, images = chain(), pictures(40, side=6)
    parts = contributions_of(model, images)
    positions = 40 * 4  # 2 x 2 output positions of each image, sums over outputs
    parts = parts / np.sqrt(positions)
    norms = model[2].weight.detach().double().transpose(0, 1).flatten(1).norm(dim=1).numpy()
    graph = sc.trace(model, images[:1])
    scores = sc.score(graph, sc.repair_each(graph, images), "cp").values["0:out"]
    assert (scores > 0).all() and len(set(scores)) == len(scores)
    order = np.sort(scores)
    for low, high in itertools.pairwise(order):
        middle = (low + high) / 2
        assert set(np.flatnonzero(lasso(parts, norms, middle))) == set(np.flatnonzero(scores > middle))
    assert not lasso(parts, norms, order[-1] * 1.001).any()


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
    graph = sc.trace(model, pictures(1, side=6))
    seen = sc.repair_each(graph, pictures(20, side=6))
    for name in ("thinet", "cp"):
        assert sc.score(graph, seen, name).order("0:out")[0] == 3


# ------------------------------------------------------------------------------------------ NISP: importance runs back


class Shortcut(nn.Module):
    """A stem, a residual block of two convolutions and a classifier; batch norms, pooling and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1, bias=False)
        self.fc = nn.Linear(3 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        h = F.relu(h + self.second(torch.sigmoid(self.first(h))))
        return self.fc(F.avg_pool2d(h, 2).flatten(1))


def matrix_of(layer: nn.Conv2d, side: int) -> np.ndarray:
    """The convolution as a matrix [outputs, inputs], column by column from unit impulses."""
    columns = []
    for place in range(layer.in_channels * side * side):
        impulse = torch.zeros(layer.in_channels * side * side, dtype=torch.float64)
        impulse[place] = 1
        picture = impulse.view(1, layer.in_channels, side, side)
        columns.append(F.conv2d(picture, layer.weight.double(), padding=layer.padding).flatten().detach().numpy())
    return np.stack(columns, 1)


def naive_inf_fs(features: np.ndarray) -> np.ndarray:
    """Infinite feature selection as a power series, with scipy's rank correlation pair by pair."""
    count = features.shape[1]
    deviation = features.std(0) / features.std(0).max()
    a = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            rank = scipy.stats.spearmanr(features[:, i], features[:, j]).statistic
            a[i, j] = 0.5 * max(deviation[i], deviation[j]) + 0.5 * (1 - abs(rank))
    step = 0.9 / np.abs(np.linalg.eigvals(a)).max() * a
    power, total = np.eye(count), np.zeros((count, count))
    for _ in range(600):
        power = power @ step
        total += power
    return total.sum(1)


def test_infinite_feature_selection() -> None:
    features = np.random.default_rng(0).normal(size=(40, 5)) * [1, 2, 0.5, 1, 3]
    features[:, 4] = features[:, 1] ** 3  # same ranks as feature 1
    found = infinite_feature_selection(torch.from_numpy(features))
    np.testing.assert_allclose(found, naive_inf_fs(features), rtol=1e-9)


def test_nisp_multiplies_importance_with_absolute_weights_from_the_classifier_back() -> None:
    model = settled(Shortcut(), (2, 8, 8))
    images = batches(shape=(2, 8, 8))
    graph = sc.trace(model, images[0][0][:1])
    found = sc.score(graph, images, "nisp").values
    final = naive_inf_fs(entering(model, "fc", images).numpy())  # [3 x 2 x 2]
    # average pooling: each of four pixels gets a quarter
    after = np.kron(final.reshape(3, 2, 2), np.full((1, 2, 2), 0.25)).ravel()  # [3 x 4 x 4]
    inner = np.abs(matrix_of(model.second, 4)).T @ after  # [4 x 4 x 4]
    into = np.abs(matrix_of(model.first, 4)).T @ inner  # [3 x 4 x 4] of the block's own reader
    np.testing.assert_allclose(found["first:out"], inner.reshape(4, -1).sum(1), rtol=1e-6)
    np.testing.assert_allclose(found["first:in"], into.reshape(3, -1).sum(1), rtol=1e-6)


# --------------------------------------------------------------------------------- DCP: losses in the middle


def four_layers() -> nn.Sequential:
    names = ["stem", "a", "b", "c", "d"]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, name in enumerate(names):
        layers[name] = nn.Conv2d(3 if place == 0 else 4, 4, 3, padding=1)
        layers[f"{name}_act"] = nn.ReLU()
    layers["pool"], layers["flat"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["fc"] = nn.Linear(4, CLASSES)
    return nn.Sequential(layers)


def test_dcp_is_the_gradient_of_the_loss_at_the_end_of_the_stage() -> None:
    model = settled(four_layers())
    data = batches()
    images, labels = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    graph = sc.trace(model, images[:1])
    assert divide(graph) == [["a"], ["b"], ["c"], ["d", "fc"]]
    found = sc.score(graph, data, "dcp").values
    for name, after in (("a", "b"), ("b", "c"), ("c", "d")):
        names = [n for n, _ in model.named_children()]
        start, end = names.index(name), names.index(after)
        with torch.no_grad():
            enters = model[:start](images)
            pooled = model[:end](images).mean((2, 3))
        mean, deviation = pooled.mean(0), pooled.std(0, correction=0)
        head = LogisticRegression(C=1 / (len(labels) * DECAY), tol=1e-10, max_iter=10_000)
        head.fit(((pooled - mean) / deviation).numpy(), labels.numpy())
        weight, bias = torch.from_numpy(head.coef_), torch.from_numpy(head.intercept_)
        total = torch.zeros_like(model[start].weight)
        for image, label in zip(enters, labels, strict=True):
            leaf = model[start].weight.detach().clone().requires_grad_()
            out = F.conv2d(image[None], leaf, model[start].bias.detach(), padding=1)
            out = model[start + 1 : end](out).mean((2, 3))
            loss = F.cross_entropy((out - mean) / deviation @ weight.T + bias, label[None])
            total += torch.autograd.grad(loss, leaf)[0] / len(labels)
        wanted = total.square().sum((0, 2, 3)).numpy()
        unit = names[start - 2] + ":out"
        np.testing.assert_allclose(found[unit], wanted, rtol=2e-3, atol=1e-6 * wanted.max())
    last = model.get_submodule("d").weight
    loss = F.cross_entropy(model(images), labels)
    wanted = torch.autograd.grad(loss, last)[0].square().sum((0, 2, 3)).detach().numpy()
    np.testing.assert_allclose(found["c:out"], wanted, rtol=1e-9)
    assert all(parameter.grad is None for parameter in model.parameters())


# --------------------------------------------------------------------------------- HRank and CHIP: feature maps


def maps_of(images: int, channels: int, height: int, width: int) -> Maps:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(images, channels, height, width, generator=generator).relu()
    x[:, 0] = 0
    x[:, 1] = x[:, 1, :1]  # equal rows: rank 1
    x[::2, 2, 1:] = 0  # rank 1 in half of the images
    return Maps("u", torch.zeros(images, dtype=torch.long), x.flatten(2), None, 1 << 20, height)


def test_hrank_is_the_mean_rank() -> None:
    maps = maps_of(6, 5, 4, 7)
    pictures_ = maps.maps.numpy().reshape(6, 5, 4, 7)
    wanted = [np.mean([np.linalg.matrix_rank(pictures_[i, c]) for i in range(6)]) for c in range(5)]
    found = METRICS["hrank"].score(maps)
    assert found.tolist() == wanted
    assert found[:2].tolist() == [0, 1] and found[2] < found[3]
    fewer = METRICS["hrank"].score(maps, images=2)  # the first and the last image
    assert fewer.tolist() == [np.mean([np.linalg.matrix_rank(pictures_[i, c]) for i in (0, 5)]) for c in range(5)]
    with pytest.raises(ScoreError, match="images must be at least 1"):
        METRICS["hrank"].score(maps, images=0)


@pytest.mark.parametrize(("channels", "height", "width"), [(5, 4, 7), (9, 2, 3), (1, 2, 2)])
def test_chip_is_the_nuclear_norm_lost_without_the_channel(channels: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, channels, height * width, generator=generator, dtype=torch.float64).relu()
    wanted = np.zeros(channels)
    for rows in x.numpy():
        for c in range(channels):
            without = rows.copy()
            without[c] = 0
            wanted[c] += (np.linalg.norm(rows, "nuc") - np.linalg.norm(without, "nuc")) / 4
    found = METRICS["chip"].score(Maps("u", torch.zeros(4, dtype=torch.long), x, None, 1 << 20, height))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_maps_of_a_network_keep_their_height() -> None:
    """HRank through a whole network: conv maps, pooled features and a flattened map of 2 x 2 pixels."""
    model = settled(Shortcut(), (2, 8, 8))
    images = batches(shape=(2, 8, 8), images=10)
    graph = sc.trace(model, images[0][0][:1])
    found = sc.score(graph, images, "hrank", num_map_images=None).values
    ranks = np.linalg.matrix_rank(entering(model, "second", images).float().numpy())
    np.testing.assert_allclose(found["first:out"], ranks.mean(0))
    alone = sc.score(graph, [some for some, _ in images], "hrank", num_map_images=None).values  # without labels
    np.testing.assert_array_equal(alone["first:out"], found["first:out"])
    one_class = [(some, torch.zeros(len(some), dtype=torch.int64)) for some, _ in images]
    np.testing.assert_allclose(
        sc.score(graph, one_class, "hrank", num_map_images=None).values["first:out"], ranks.mean(0)
    )
    with pytest.raises(ScoreError, match="two classes"):
        sc.score(graph, one_class, ["hrank", "mmd"])
    with pytest.raises(ScoreError, match=r"maps of two images need more than .* raise memory_gib"):
        sc.score(graph, images, "hrank", memory_gib=1e-9)
