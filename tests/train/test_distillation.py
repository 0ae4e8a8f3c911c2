"""The distillation loss against its formula in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.tasks.builtin import CLASSIFICATION
from prunus.train.distillation import common_maps, distillation_loss

DRAW = np.random.default_rng(0)
STUDENT, TEACHER, LABELS = DRAW.normal(size=(6, 4)), DRAW.normal(size=(6, 4)), DRAW.integers(0, 4, 6)


def loss(student: torch.Tensor, temperature: float, weight: float) -> torch.Tensor:
    teacher, labels = torch.from_numpy(TEACHER), torch.from_numpy(LABELS)
    return distillation_loss(CLASSIFICATION, student, teacher, labels, temperature, weight)


@pytest.mark.parametrize("temperature, weight", [(2.0, 0.5), (4.0, 0.9), (1.0, 1.0)])
def test_equals_the_formula(temperature: float, weight: float) -> None:
    hard = -log_softmax(STUDENT, axis=1)[np.arange(6), LABELS].mean()
    truth = softmax(TEACHER / temperature, axis=1)
    divergence = (truth * (np.log(truth) - log_softmax(STUDENT / temperature, axis=1))).sum(1).mean()
    expected = (1 - weight) * hard + weight * temperature**2 * divergence
    found = loss(torch.from_numpy(STUDENT), temperature, weight)
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_the_ends_are_plain_cross_entropy_and_perfect_imitation() -> None:
    student = torch.from_numpy(STUDENT)
    plain = F.cross_entropy(student, torch.from_numpy(LABELS))
    assert float(loss(student, 3.0, 0.0)) == pytest.approx(float(plain), rel=1e-12)
    assert float(loss(torch.from_numpy(TEACHER), 3.0, 1.0)) == pytest.approx(0.0, abs=1e-12)


def test_the_gradient_goes_to_the_student() -> None:
    student = torch.from_numpy(STUDENT).requires_grad_()
    loss(student, 2.0, 1.0).backward()
    expected = 2.0 * (softmax(STUDENT / 2, axis=1) - softmax(TEACHER / 2, axis=1)) / 6  # T^2 x (p - q) / T, mean over 6
    np.testing.assert_allclose(student.grad.numpy(), expected, atol=1e-12)  # type: ignore[union-attr]


class DecodesInEval(nn.Module):
    """A detector in small: its last layer runs in eval mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.decoder = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.body(images)
        return maps if self.training else self.decoder(maps)


def test_maps_that_training_does_not_compute_are_not_compared() -> None:
    model = DecodesInEval()
    assert common_maps(model, DecodesInEval(), torch.zeros(1, 3, 8, 8)) == ["body"]
