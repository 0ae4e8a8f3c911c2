"""Sums over activations of every layout and type, and streaming moments, against numpy on all numbers at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prunus.scoring.collect import Members, class_moments
from prunus.scoring.moments import (
    Accumulator,
    ClassMoments,
    ClassSums,
    ImageSums,
    combine,
    image_sums,
    row_sums,
    row_sums_by_welford,
    to_image_sums,
)

K, C = 4, 3


def data(images: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, K, (images,), generator=generator)
    x = torch.randn(images, C, 5, 2, generator=generator, dtype=torch.float64)
    return x * (1 + labels.view(-1, 1, 1, 1)) + labels.view(-1, 1, 1, 1), labels


def streamed(x: Tensor, labels: Tensor, sizes: list[int]) -> ClassMoments:
    accumulator = Accumulator([C], K)
    for part, mine in zip(x.split(sizes), labels.split(sizes), strict=True):
        accumulator.add(sums(part, mine))
    return accumulator.result()[0]


def sums(x: Tensor, labels: Tensor) -> ClassSums:
    return Members.of(labels).sums_of_images(image_sums(x))


def check(moments: ClassMoments, x: Tensor, labels: Tensor) -> None:
    for k in range(K):
        mine = x[labels == k].numpy()
        assert moments.num_images[k] == len(mine)
        assert moments.count[k] == len(mine) * 10
        if len(mine):
            np.testing.assert_allclose(moments.mean[k], mine.mean((0, 2, 3)), rtol=1e-12)
            np.testing.assert_allclose(moments.variance[k], mine.var((0, 2, 3)), rtol=1e-12)


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [13, 1, 26], [20, 20]])
def test_any_batches_and_order_give_the_moments_of_all_images(sizes: list[int]) -> None:
    x, labels = data()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    by_class = Accumulator([C])  # rows are added for classes as they occur, the last one last
    last = labels.argsort()
    for part, mine in zip(x[last].split(sizes), labels[last].split(sizes), strict=True):
        by_class.add(sums(part, mine))
    for moments in (
        streamed(x, labels, sizes),
        streamed(x[order], labels[order], sizes),
        by_class.result()[0],
    ):
        check(moments, x, labels)


@pytest.mark.parametrize("classes", [K, K - 1])
def test_total_and_rest_against_numpy(classes: int) -> None:
    """Also if the last class has no images."""
    x, labels = data()
    labels = labels.clamp(max=classes - 1)
    moments = streamed(x, labels, [17, 23])
    check(moments, x, labels)
    count, mean, m2 = moments.total()
    everything = x.numpy()
    assert count == 400
    np.testing.assert_allclose(mean, everything.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(m2 / count, everything.var((0, 2, 3)), rtol=1e-12)
    rest = moments.rest
    for k in range(K):
        others = x[labels != k].numpy()
        assert rest.num_images[k] == len(others)
        np.testing.assert_allclose(rest.mean[k], others.mean((0, 2, 3)), rtol=1e-11)
        np.testing.assert_allclose(rest.variance[k], others.var((0, 2, 3)), rtol=1e-11)


def test_rest_of_a_class_far_away_does_not_cancel() -> None:
    x = torch.randn(40, 1, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.arange(40) % 4
    x[labels == 2] = x[labels == 2] * 1e4 + 1e6
    moments = class_moments(x, labels)
    others = x[labels != 2].numpy()
    np.testing.assert_allclose(moments.rest.variance[2], others.var(), rtol=1e-3)
    np.testing.assert_allclose(moments.rest.mean[2], others.mean(), atol=1e-8)


numbers = st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=8)


@settings(max_examples=40, deadline=None)
@given(numbers, numbers, numbers)
def test_combine_is_associative_and_right(a: list[float], b: list[float], c: list[float]) -> None:
    def triple(values: list[float]) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.tensor(values, dtype=torch.float64)
        mean = x.mean() if len(values) else torch.zeros((), dtype=torch.float64)
        return torch.tensor(float(len(values)), dtype=torch.float64), mean, (x - mean).square().sum()

    left = combine(combine(triple(a), triple(b)), triple(c))
    right = combine(triple(a), combine(triple(b), triple(c)))
    everything = np.array([*a, *b, *c])
    scale = max(1.0, float(np.abs(everything).max(initial=0)))
    for count, mean, m2 in (left, right):
        assert count == len(everything)
        if len(everything):
            assert abs(float(mean) - everything.mean()) <= 1e-12 * scale
            assert abs(float(m2) - everything.var() * len(everything)) <= 1e-10 * scale**2


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
