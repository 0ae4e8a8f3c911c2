"""The fast elimination beside one that solves anew for every choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from secateur.errors import ScoreError
from secateur.scoring import elimination
from secateur.scoring.elimination import Elimination


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
    monkeypatch.setattr(elimination, "DELAYED", delayed)
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


def test_moments_that_rounding_has_made_indefinite_are_shifted_a_little() -> None:
    moments = torch.ones(3, 3, dtype=torch.float64) - 1e-12 * torch.eye(3, dtype=torch.float64)
    found = Elimination(torch.ones(1, 3, dtype=torch.float64), moments, torch.arange(3)[:, None])
    assert bool(torch.isfinite(found.errors).all())
    assert float(found.errors.max()) < 1e-3  # each of three equal inputs can be rebuilt from the others


def test_moments_that_are_not_numbers_are_refused() -> None:
    moments = torch.full((3, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(ScoreError, match="values that are not finite"):
        Elimination(torch.ones(1, 3, dtype=torch.float64), moments, torch.arange(3)[:, None])
