"""Ridge least squares beside numpy's lstsq."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prunus.repairing.least_squares import Fit, choose, error, solve
from prunus.scoring import gram_sums as regression_sums
from prunus.scoring.gram_sums import GramSums, KeptRows
from tests.repairing.toys import naive


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("rows", [40, 7])  # more and fewer than the 9 unknowns
def test_sums_and_rows_solve_the_same_problem_as_lstsq(rows: int, constant: bool) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(1.0, 1.0, (rows, 2, 9)), rng.normal(2.0, 1.0, (rows, 2, 4))
    start, bias = rng.normal(size=(2, 4, 9)), rng.normal(size=(2, 4))
    for kind in (GramSums, KeptRows):
        sums = kind()
        sums.add(torch.tensor(x[:3]), torch.tensor(y[:3]))
        rest = kind()
        rest.add(torch.tensor(x[3:]), torch.tensor(y[3:]))
        whole = sums + rest  # type: ignore[operator]
        assert whole.rows == rows
        for fit in solve(whole, Fit(torch.tensor(start), torch.tensor(bias), constant), [1e-2, 1.0]):
            for group in range(2):
                target = y[:, group] if constant else y[:, group] - bias[group]
                want = naive(x[:, group], target, start[group], fit.ridge, constant)
                np.testing.assert_allclose(fit.weight[group], want[:, :9], rtol=1e-7, atol=1e-9)
                np.testing.assert_allclose(fit.constant[group], want[:, 9] if constant else bias[group], rtol=1e-7)
                off = y[:, group] - x[:, group] @ want[:, :9].T - fit.constant[group].numpy()
                np.testing.assert_allclose(error(whole, fit)[group], (off**2).mean(0), rtol=1e-6)
        np.testing.assert_allclose(whole.output_moments()[1], y.var(0), rtol=1e-9)


def test_the_ridge_is_the_one_that_does_best_on_held_out_rows() -> None:
    """20 rows of noise for 15 unknowns, and the truth is the start: the largest ridge must win. Without noise and away
    from the truth the smallest must."""
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(1, 3, 15))
    x = rng.normal(size=(40, 1, 15))
    clean = np.einsum("rgn,gon->rgo", x, truth)
    for noise, start, want in ((3.0, truth, 10.0), (0.0, 0 * truth, 1e-4)):
        y = clean + noise * rng.normal(size=clean.shape)
        fitted, held_out, everything = GramSums(), GramSums(), GramSums()
        for sums, part in ((fitted, slice(0, 20)), (held_out, slice(20, 40)), (everything, slice(0, 40))):
            sums.add(torch.tensor(x[part]), torch.tensor(y[part]))
        fit = choose(fitted, held_out, Fit(torch.tensor(start), torch.zeros(1, 3), True), [1e-4, 1e-2, 10.0])
        assert fit is not None
        assert fit.ridge == want
        again = solve(everything, Fit(torch.tensor(start), torch.zeros(1, 3), True), [want])[0]
        assert torch.allclose(fit.weight, again.weight)  # the last word has all rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_wide_layers_are_those_of_all_rows_at_once(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several strips of columns, the last one narrower, and rows in several portions, far from zero."""
    monkeypatch.setattr(regression_sums, "STRIP", 16)
    monkeypatch.setattr(regression_sums, "AT_ONCE", 100)
    x, y = torch.randn(250, 2, 43, dtype=dtype) + 50, torch.randn(250, 2, 3, dtype=dtype) - 20
    sums = GramSums()
    for rows in (slice(0, 30), slice(30, 190), slice(190, 250)):
        sums.add(x[rows], y[rows])
    for group in (0, 1):
        a, b = x[:, group].double().numpy(), y[:, group].double().numpy()
        np.testing.assert_allclose(sums.sums.xx[group], a.T @ a, rtol=1e-6)
        np.testing.assert_allclose(sums.sums.xy[group], a.T @ b, rtol=1e-6)
        want = np.cov(a.T, bias=True)  # what is left of numbers 2,500 times as large
        np.testing.assert_allclose(sums.covariance(group), want, atol=1e-5 if dtype == torch.float32 else 1e-10)
