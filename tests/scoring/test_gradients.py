"""Losses at inner layers beside one image at a time, and NISP beside propagations with matrices and with loops."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as pr
from prunus.scoring.gradients import DECAY, divide, infinite_feature_selection
from tests.scoring.toys import CLASSES, Shortcut, batches, entering, settled
from tests.tasks.nets import Wrapped, sums


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
    graph = pr.trace(model, images[:1])
    assert divide(graph) == [["a"], ["b"], ["c"], ["d", "fc"]]
    found = pr.score(graph, data, "dcp").values
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


def test_taylor_follows_the_loss_of_the_task() -> None:
    torch.manual_seed(4)
    batches = sums()[:1]
    model = Wrapped().eval()
    graph = pr.trace(model, tuple(x[:1] for x in batches[0][0]))
    found = pr.score(graph, batches, metric="taylor", task="regression")
    inputs, labels = batches[0]
    loss = (model(*inputs).logits[:, 0] - labels).square().mean()
    (gradient,) = torch.autograd.grad(loss, [model.one.weight])
    want = (gradient * model.one.weight).abs().flatten(1).sum(1).detach().numpy()
    assert found.values["one:out"] == pytest.approx(want, rel=1e-4)


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
    graph = pr.trace(model, images[0][0][:1])
    found = pr.score(graph, images, "nisp").values
    final = naive_inf_fs(entering(model, "fc", images).numpy())  # [3 x 2 x 2]
    # average pooling: each of four pixels gets a quarter
    after = np.kron(final.reshape(3, 2, 2), np.full((1, 2, 2), 0.25)).ravel()  # [3 x 4 x 4]
    inner = np.abs(matrix_of(model.second, 4)).T @ after  # [4 x 4 x 4]
    into = np.abs(matrix_of(model.first, 4)).T @ inner  # [3 x 4 x 4] of the block's own reader
    np.testing.assert_allclose(found["first:out"], inner.reshape(4, -1).sum(1), rtol=1e-6)
    np.testing.assert_allclose(found["first:in"], into.reshape(3, -1).sum(1), rtol=1e-6)


class Deep(nn.Module):
    """Two convolutions with batch norms, a max pooling whose windows overlap, a residual block and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm_one = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.two, self.norm_two = nn.Conv2d(4, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.pool = nn.MaxPool2d(3, stride=2)
        self.first, self.second = nn.Conv2d(3, 5, 3, padding=1), nn.Conv2d(5, 3, 3, padding=1)
        self.fc = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm_one(self.one(x)))
        h = self.pool(F.relu(self.norm_two(self.two(h))))
        h = F.relu(h + self.second(F.relu(self.first(h))))
        return self.fc(h.mean((2, 3)))


def back_through_convolution(importance: np.ndarray, layer: nn.Conv2d) -> np.ndarray:
    """[in, h, w] from [out, h, w], for a kernel of 3 x 3 with padding 1: |W|' s, pixel by pixel."""
    weights = np.abs(layer.weight.detach().numpy())  # [out, in, 3, 3]
    outputs, height, width = importance.shape
    found = np.zeros((weights.shape[1], height + 2, width + 2))
    for out in range(outputs):
        for y in range(height):
            for x in range(width):
                found[:, y : y + 3, x : x + 3] += weights[out] * importance[out, y, x]
    return found[:, 1:-1, 1:-1]


def back_through_pooling(importance: np.ndarray, side: int) -> np.ndarray:
    """[c, side, side]: each of the 9 pixels of a window gets a ninth of what its maximum is worth."""
    channels, height, width = importance.shape
    found = np.zeros((channels, side, side))
    for y in range(height):
        for x in range(width):
            found[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3] += importance[:, y, x, None, None] / 9
    return found


def test_importance_passes_batch_norm_max_pooling_and_the_sum_at_a_shortcut() -> None:
    model = settled(Deep(), (2, 9, 9))
    images = batches(shape=(2, 9, 9))
    found = pr.score(pr.trace(model, images[0][0][:1]), images, "nisp").values
    final = naive_inf_fs(entering(model, "fc", images).numpy())  # [3]
    after = np.repeat(final / 16, 16).reshape(3, 4, 4)  # the mean: each of 16 pixels gets a sixteenth
    inner = back_through_convolution(after, model.second)
    into = back_through_convolution(inner, model.first)
    pooled = back_through_pooling(after + into, 9)  # the shortcut and the block
    norm = model.norm_two
    gain = (norm.weight.abs() / (norm.running_var + norm.eps).sqrt()).detach().numpy()
    assert (norm.weight < 0).any() and abs(gain - 1).min() > 0.01  # the sign and the deviation count
    hidden = back_through_convolution(pooled * gain[:, None, None], model.two)
    wanted = {"first:out": inner, "first:in": into, "one:out": hidden}
    assert set(found) == {*wanted, "fc:in"}
    for unit, values in wanted.items():
        np.testing.assert_allclose(found[unit], values.sum((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["fc:in"], final, rtol=1e-6)
