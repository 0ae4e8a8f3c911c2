"""The fast elimination beside one that solves anew for every choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prunus.errors import ScoreError
from prunus.score.metrics import rebuild as elimination
from prunus.score.metrics.rebuild import Elimination


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


def removed_one_by_one(weight: np.ndarray, moments: np.ndarray, columns: np.ndarray) -> tuple[list[int], list[float]]:
    """The blocks in the order of their removal, and what each adds."""
    fast = Elimination(*(torch.from_numpy(a) for a in (weight, moments, columns)))
    order, added = [], []
    for _ in columns:
        order.append(int(fast.errors.argmin()))
        added.append(float(fast.errors[order[-1]]))
        fast.remove(order[-1])
    return order, added


def test_wide_layers_in_float32_give_the_same_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, moments, columns = problem(60, 4, 30, 5, seed=3)
    moments += 0.01 * np.trace(moments) / len(moments) * np.eye(len(moments))  # the ridge of `rebuilt`
    monkeypatch.setattr(elimination, "WIDE", len(moments) - 1)
    assert Elimination(*(torch.from_numpy(a) for a in (weight, moments, columns)))._inverse.dtype == torch.float32
    order, added = removed_one_by_one(weight, moments, columns)
    gone: list[int] = []
    for block, error in zip(order, added, strict=True):  # from scratch, in float64
        left = [[i for i in range(len(moments)) if i not in columns[some]] for some in (gone, [*gone, block])]
        before, after = (least_error(weight, moments, each) for each in left)
        assert error == pytest.approx(after - before, rel=1e-3)
        gone.append(block)


def test_a_wide_layer_without_a_ridge_stays_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs are almost equal: in float32 the difference that is left would be noise."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(4000, 8))
    rows[:, 7] = rows[:, 6] + 1e-4 * rows[:, 7]
    moments = rows.T @ rows / len(rows)
    want = removed_one_by_one(np.eye(8), moments, np.arange(8)[:, None])
    monkeypatch.setattr(elimination, "WIDE", 4)
    order, added = removed_one_by_one(np.eye(8), moments, np.arange(8)[:, None])
    assert order == want[0]
    np.testing.assert_allclose(added, want[1], rtol=1e-9)


def test_a_block_may_be_wide_in_a_layer_that_stays_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, moments, columns = problem(3, 6, 4, 0, seed=1)
    moments[0] *= 1e-9  # precise enough for float64 alone
    moments[:, 0] *= 1e-9
    want = removed_one_by_one(weight, moments, columns)
    monkeypatch.setattr(elimination, "WIDE", 5)
    order, added = removed_one_by_one(weight, moments, columns)
    assert order == want[0]
    np.testing.assert_allclose(added, want[1], rtol=1e-9)


def test_moments_that_rounding_has_made_indefinite_are_shifted_a_little() -> None:
    moments = torch.ones(3, 3, dtype=torch.float64) - 1e-12 * torch.eye(3, dtype=torch.float64)
    found = Elimination(torch.ones(1, 3, dtype=torch.float64), moments, torch.arange(3)[:, None])
    assert bool(torch.isfinite(found.errors).all())
    assert float(found.errors.max()) < 1e-3  # each of three equal inputs can be rebuilt from the others


def test_moments_that_are_not_numbers_are_refused() -> None:
    moments = torch.full((3, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(ScoreError, match="values that are not finite"):
        Elimination(torch.ones(1, 3, dtype=torch.float64), moments, torch.arange(3)[:, None])
