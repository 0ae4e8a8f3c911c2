"""Values that are kept: what is stored comes back, and checkpoints are the best of all choices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from prunus.repairing import value_store as rates
from prunus.repairing.value_store import Stops, ValueStore, checkpoints


def seconds_of(stops: Stops, kept: tuple[bool, ...], capacity: float, disk: float) -> float:
    """The time of one choice, visit by visit."""
    total, start = 0.0, None
    for k, (seconds, size, count) in enumerate(zip(stops.seconds, stops.sizes, stops.images, strict=True)):
        if start is None:
            total += count * seconds
        else:
            there = stops.images[start] * stops.sizes[start]
            spilled = max(0.0, there - capacity)
            first = k == start + 1
            total += stops.images[start] * (seconds - stops.seconds[start]) + spilled / rates.DISK
            total += (count - stops.images[start]) * seconds
            total += 0 if first else (there - spilled) / rates.COPY
        if kept[k]:
            spilled = max(0.0, count * size - capacity)
            total += spilled / rates.DISK if spilled <= disk else math.inf
            start = k
    return total


@pytest.mark.parametrize("capacity, disk", [(0.0, 1e12), (3e9, 1e12), (3e9, 2e9), (0.0, 0.0)])
def test_checkpoints_are_the_best_of_all_choices(capacity: float, disk: float) -> None:
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        seconds = torch.rand(7, generator=draw).mul(0.4).cumsum(0).tolist()
        sizes = torch.rand(7, generator=draw).mul(8e7).tolist()
        stops = Stops(seconds, sizes, torch.randint(0, 30, (7,), generator=draw).cumsum(0).tolist())
        choices = [(*some, False) for some in itertools.product((False, True), repeat=6)]
        best = min(seconds_of(stops, kept, capacity, disk) for kept in choices)
        got = tuple(checkpoints(stops, capacity, disk))
        assert seconds_of(stops, got, capacity, disk) == pytest.approx(best)
    assert checkpoints(Stops([], [], []), 0, 0) == []
    assert checkpoints(Stops([1, 2, 3], [5, 5, 5], [1, 1, 1]), 5, 0) == [True, True, False]  # everything fits


@pytest.mark.parametrize("capacity", [0, 10**9])
def test_a_store_gives_back_values_and_the_memory_that_they_share(capacity: int) -> None:
    weight, base = torch.randn(3), torch.arange(12.0)
    values: dict[str, Any] = {"a": base[:6].view(2, 3), "b": (base[3:], 7), "w": weight, "n": torch.tensor([1, 2])}
    before = tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, values)
    store = ValueStore(capacity, {weight.untyped_storage().data_ptr()})
    store.add(values)
    for got in (store.copy(0), store.copy(0), store.take(0)):
        for name in ("a", "w", "n"):
            assert torch.equal(got[name], before[name])
        assert torch.equal(got["b"][0], before["b"][0]) and got["b"][1] == 7
        assert got["w"] is weight
        got["a"].zero_()
        assert got["b"][0][:3].tolist() == [0, 0, 0]  # they share memory, as they did
        assert got["b"][0][3:].tolist() == before["b"][0][3:].tolist()
    store.close()


@pytest.mark.parametrize("capacity", [0, 10**9])
def test_half_precision_is_used_where_it_can_hold_the_values(capacity: int) -> None:
    values = [
        torch.tensor([1.0, 1 / 3, -500.0]),
        torch.tensor([1.0, 70000.0]),
        torch.tensor([1 / 3], dtype=torch.float64),
        torch.tensor([1e-8, -3e-7]),
        torch.zeros(3),
    ]
    store = ValueStore(capacity, half=True)
    store.add(values)
    small, large, exact, tiny, zero = store.take(0)
    assert tiny.tolist() == values[3].tolist() and zero.tolist() == [0, 0, 0]
    assert small.dtype == torch.float32 and small.tolist() == [1.0, float(torch.tensor(1 / 3).half()), -500.0]
    assert large.tolist() == [1.0, 70000.0] and exact.tolist() == values[2].tolist()
    store.close()


def test_two_stores_together_hold_no_more_than_one_may() -> None:
    """One is emptied while the other is filled with values of twice the size."""
    first = ValueStore(400)
    for number in range(4):
        first.add(torch.full((25,), float(number)))  # 100 bytes each
    second = ValueStore(400, beside=first)
    assert first.in_memory == 400
    for number in range(4):
        second.add(first.take(number).repeat(2))
        assert first.in_memory + second.in_memory <= 400
    assert second.in_memory == 400 and [second.take(n)[0].item() for n in range(4)] == [0, 1, 2, 3]
    first.close()
    second.close()
