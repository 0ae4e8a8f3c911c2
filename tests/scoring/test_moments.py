"""Streaming moments against numpy on all numbers at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prunus.scoring.channel_sums import image_sums
from prunus.scoring.collect import Members, class_moments
from prunus.scoring.moments import Accumulator, ClassMoments, ClassSums, beside, combine

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
def test_any_batches_give_the_moments_of_all_images(sizes: list[int]) -> None:
    x, labels = data()
    check(streamed(x, labels, sizes), x, labels)


def test_shuffled_and_merged_are_the_same() -> None:
    x, labels = data()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    shuffled = streamed(x[order], labels[order], [15, 25])
    left, right = streamed(x[:11], labels[:11], [11]), streamed(x[11:], labels[11:], [29])
    for moments in (shuffled, left.merge(right), right.merge(left)):
        check(moments, x, labels)


def test_rows_are_added_for_classes_as_they_occur() -> None:
    x, labels = data()
    order = labels.argsort()  # the last class comes last
    accumulator = Accumulator([C])
    for part, mine in zip(x[order].split(7), labels[order].split(7), strict=True):
        accumulator.add(sums(part, mine))
    check(accumulator.result()[0], x, labels)


def test_a_class_without_images_stays_empty() -> None:
    x, labels = data()
    labels = labels.clamp(max=2)
    moments = streamed(x, labels, [40])
    assert moments.num_images[3] == moments.count[3] == 0
    assert torch.equal(moments.variance[3], torch.zeros(C, dtype=torch.float64))
    check(moments, x, labels)


def test_total_and_rest_against_numpy() -> None:
    x, labels = data()
    moments = streamed(x, labels, [17, 23])
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


@settings(max_examples=60, deadline=None)
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


def test_tensors_side_by_side_are_as_if_alone() -> None:
    x, labels = data()
    y = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    together = Accumulator([C, 2], K)
    for span in (slice(0, 9), slice(9, 40)):
        together.add(beside([sums(x[span], labels[span]), sums(y[span], labels[span])]))
    first, second = together.result()
    check(first, x, labels)
    for k in range(K):
        mine = y[labels == k].numpy()
        assert second.count[k] == len(mine) * 3
        np.testing.assert_allclose(second.variance[k], mine.var((0, 2)), rtol=1e-12)


def test_sum_over_processes_equals_one() -> None:
    """Two threads stand for two processes: each adds its half, then they add up with one another."""
    x, labels = data()
    barrier, board = threading.Barrier(2), [torch.empty(0), torch.empty(0)]

    def process(which: int) -> ClassMoments:
        def all_reduce(tensor: Tensor) -> Tensor:
            board[which] = tensor
            barrier.wait()
            total = board[0] + board[1]
            barrier.wait()
            return total

        span = slice(20 * which, 20 * which + 20)
        accumulator = Accumulator([C], K)
        accumulator.add(sums(x[span], labels[span]))
        accumulator.sum_over(all_reduce)
        return accumulator.result()[0]

    with ThreadPoolExecutor(2) as pool:
        for moments in pool.map(process, range(2)):
            check(moments, x, labels)
