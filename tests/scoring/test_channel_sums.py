"""Sums over whole activations: every memory layout and type, and the rows that must be recomputed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from prunus.scoring.channel_sums import ImageSums, image_sums, row_sums, row_sums_by_welford, to_image_sums
from prunus.scoring.collect import class_moments


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


LAYOUTS = {
    "plain": lambda: images(6, 5, 9, 7).relu(),
    "channels last": lambda: images(6, 5, 9, 7).to(memory_format=torch.channels_last),
    "tokens": lambda: images(6, 11, 5).movedim(-1, 1),
    "transposed": lambda: images(6, 9, 7, 5).permute(0, 3, 2, 1),
    "every second": lambda: images(12, 5, 9, 7)[::2],
    "one channel": lambda: images(6, 1, 9, 7),
    "one pixel": lambda: images(6, 5, 1, 1),
    "flat": lambda: images(6, 5),
    "volume": lambda: images(3, 4, 3, 4, 5),
    "one image": lambda: images(1, 4, 6, 6),
    "double": lambda: images(6, 5, 9, 7, dtype=torch.float64),
    "half": lambda: images(6, 5, 9, 7, dtype=torch.float16),
    "brain": lambda: images(6, 5, 9, 7, dtype=torch.bfloat16),
    "larger than a chunk": lambda: images(3, 4, 330, 330),
    "larger than a chunk, channels last": lambda: images(3, 4, 330, 330).to(memory_format=torch.channels_last),
}


def m2_of(sums: ImageSums) -> Tensor:
    return sums.squares - sums.total**2 / sums.positions


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moments_of_each_image(layout: str) -> None:
    x = LAYOUTS[layout]()
    rows = x.double().reshape(*x.shape[:2], -1).numpy()
    found = image_sums(x)
    assert found.total.dtype == found.squares.dtype == torch.float64
    assert (found.positions == rows.shape[2]).all()
    assert (np.abs(found.total.numpy() - rows.sum(2)) <= 1e-6 * np.abs(rows).sum(2)).all()
    np.testing.assert_allclose(found.squares, (rows**2).sum(2), rtol=1e-6)
    np.testing.assert_allclose(m2_of(found), rows.var(2) * rows.shape[2], rtol=3e-6, atol=1e-12)


@pytest.mark.parametrize("last", [False, True])
def test_a_large_mean_does_not_drown_a_small_deviation(last: bool) -> None:
    """Mean 1e4 and deviation 1 in float32: the class variance is right to 1e-3, as the data themselves say."""
    x = images(40, 3, 16, 16) + 1e4
    x = x.to(memory_format=torch.channels_last) if last else x
    labels = torch.arange(40) % 2
    moments = class_moments(x, labels)
    for k in range(2):
        mine = x[labels == k].double().numpy()
        np.testing.assert_allclose(moments.variance[k], mine.var((0, 2, 3)), rtol=1e-6)
        np.testing.assert_allclose(moments.variance[k], 1.0, rtol=0.05)
        np.testing.assert_allclose(moments.mean[k], mine.mean((0, 2, 3)), rtol=1e-12)


def test_only_doubtful_rows_are_recomputed() -> None:
    x = images(4, 3, 8, 8)
    x[2, 1] += 500
    x[0, 0] = 7.0
    x[1, 1] = 0.0
    found = row_sums(x)
    assert found.precise is not None
    assert sorted(zip(found.precise.image.tolist(), found.precise.channel.tolist(), strict=True)) == [
        (0, 0),
        (2, 1),
    ]
    m2 = m2_of(to_image_sums([found]))
    assert m2[0, 0] == m2[1, 1] == 0
    np.testing.assert_allclose(m2[2, 1], x[2, 1].double().numpy().var() * 64, rtol=1e-8)


def test_the_kernel_for_accelerators_agrees() -> None:
    x = images(6, 5, 9, 7)
    mixed = to_image_sums([row_sums(x), row_sums_by_welford(x)])
    assert mixed.positions.tolist() == [63] * 10
    torch.testing.assert_close(mixed.total[:, 5:], mixed.total[:, :5], rtol=0, atol=1e-4)
    torch.testing.assert_close(mixed.squares[:, 5:], mixed.squares[:, :5], rtol=1e-5, atol=0)


def test_what_is_kept_does_not_change_with_the_tensor() -> None:
    x = images(3, 4)
    kept, before = row_sums(x), x.double()
    x.zero_()
    assert torch.equal(to_image_sums([kept]).total, before)


def test_nan_and_infinity_show() -> None:
    for bad in (float("nan"), float("inf"), -float("inf"), 1e30):
        x = images(2, 3, 4, 4)
        x[1, 2, 0, 0] = bad
        squares = image_sums(x).squares
        assert not torch.isfinite(squares[1, 2])
        assert torch.isfinite(squares[0]).all() and torch.isfinite(squares[1, :2]).all()
