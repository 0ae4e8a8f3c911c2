"""The tests' own measures: accuracy with room for rounding, and no more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.proof import accuracy_bounds, assert_accuracy

# The label leads by 1, trails by 1, leads by 1e-5 and trails by 1e-5; the largest logit is 2.
LOGITS = torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.00001, 1.0], [1.0, 1.00001]])
BATCHES = [(LOGITS, torch.zeros(4, dtype=torch.long))]


def test_images_on_the_border_may_count_either_way() -> None:
    assert accuracy_bounds(nn.Identity(), BATCHES, rounding=1e-5) == (0.25, 0.75)  # two logits move by 2e-5 each
    assert accuracy_bounds(nn.Identity(), BATCHES, rounding=1e-6) == (0.5, 0.5)
    assert accuracy_bounds(nn.Identity(), [(x[:2], y[:2]) for x, y in BATCHES]) == (0.5, 0.5)


def test_another_accuracy_is_refused() -> None:
    for found in (0.25, 0.5, 0.75):
        assert_accuracy(found, nn.Identity(), BATCHES)
    for found in (0.0, 1.0):
        with pytest.raises(AssertionError, match=r"is not between 0.25 and 0.75"):
            assert_accuracy(found, nn.Identity(), BATCHES)
    with pytest.raises(AssertionError):
        assert_accuracy(0.75, nn.Identity(), BATCHES, rounding=1e-6)
