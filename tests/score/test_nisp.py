"""NISP through batch norm, max pooling and a shortcut, beside a propagation written with loops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc
from tests.score.test_compared_methods import naive_inf_fs
from tests.score.toys import CLASSES, batches, entering, settled

Floats = npt.NDArray[np.float64]


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


def back_through_convolution(importance: Floats, layer: nn.Conv2d) -> Floats:
    """[in, h, w] from [out, h, w], for a kernel of 3 x 3 with padding 1: |W|' s, pixel by pixel."""
    weights = np.abs(layer.weight.detach().numpy())  # [out, in, 3, 3]
    outputs, height, width = importance.shape
    found = np.zeros((weights.shape[1], height + 2, width + 2))
    for out in range(outputs):
        for y in range(height):
            for x in range(width):
                found[:, y : y + 3, x : x + 3] += weights[out] * importance[out, y, x]
    return found[:, 1:-1, 1:-1]


def back_through_pooling(importance: Floats, side: int) -> Floats:
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
    found = sc.score(sc.trace(model, images[0][0][:1]), images, "nisp").values
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
