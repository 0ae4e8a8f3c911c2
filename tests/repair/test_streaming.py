"""A repair within a bound on memory gives what a repair without one gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils._pytree import tree_map

from prunus.errors import RunError
from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan
from prunus.repair import lockstep
from prunus.repair import solve as layer_solve
from prunus.repair import value_store as rates
from prunus.repair.repair import repair
from prunus.repair.value_store import Stops, ValueStore, checkpoints
from prunus.util.processes import parse_memory
from tests.repair.test_layer_solve import Residual, pictures

KEEP = [0, 2, 5]


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


@pytest.mark.parametrize("how", ["solve", "bn"])
@pytest.mark.parametrize("inplace, enough", [(False, 10**6), (True, 10**6), (True, 20)])
def test_values_that_do_not_fit_are_kept_elsewhere_or_computed_again(
    how: str, inplace: bool, enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, where nothing is halved, all ways give the same network, also if early layers need fewer images."""
    torch.manual_seed(0)
    monkeypatch.setattr(layer_solve, "ENOUGH", enough)
    monkeypatch.setattr(layer_solve, "LEAST", 10)
    monkeypatch.setattr(lockstep, "AT_ONCE", 2**14)  # a few images at once
    model = Residual(inplace).double().eval()
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"a1:out": KEEP, "b1:out": KEEP})
    batches = list(pictures(90).split(20))
    want = repair(graph, plan, batches, how=how).state_dict()
    taken: list[list[bool]] = []

    def chosen(every: int, stops: Stops, capacity: float, disk: float) -> list[bool]:
        assert capacity == 0 and disk > 0
        taken.append([number % every == 0 for number in range(len(stops.sizes) - 1)] + [False])
        return taken[-1]

    monkeypatch.setattr(lockstep, "used_memory", lambda: 2**50)  # nothing fits
    for every in (1, 2, 100):
        monkeypatch.setattr(lockstep, "checkpoints", partial(chosen, every))
        got = repair(graph, plan, iter(batches), how=how, memory="100M").state_dict()
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-11)
    assert len(taken) == 3


def test_a_layer_takes_as_many_images_as_it_needs_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images 40 to 79 are of another kind: without any of them, the solved weights would not know of it."""
    seen: dict[str, list[int]] = {}
    chunks_at = lockstep.Lockstep.chunks_at

    def noted(self: lockstep.Lockstep, node: fx.Node) -> Iterator[lockstep.Chunk]:
        for chunk in chunks_at(self, node):
            seen.setdefault(str(node.target), []).extend(range(chunk.first, chunk.first + chunk.size))
            yield chunk

    monkeypatch.setattr(lockstep.Lockstep, "chunks_at", noted)
    monkeypatch.setattr(lockstep, "AT_ONCE", 2**14)
    monkeypatch.setattr(layer_solve, "LEAST", 12)
    layers = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 2, 3, padding=1)
    model = nn.Sequential(*layers).double()
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"0:out": [1, 2], "1:out": [0], "2:out": [0, 1, 2, 4]})
    for enough, counts in ((1, (12, 12, 12)), (16, (36, 36, 72)), (10**6, (80, 80, 80))):
        # 8 positions and 18, 1 and 36 weights per filter: 2.25, 0.125 and 4.5 images for each row of a weight
        monkeypatch.setattr(layer_solve, "ENOUGH", enough)
        seen.clear()
        repair(graph, plan, pictures(80), positions=8)
        for name, count in zip("123", counts, strict=True):
            images = seen[name]
            assert len(set(images)) == len(images) and count <= len(images) < count + 8
            assert sum(image >= 40 for image in images) == pytest.approx(len(images) / 2, abs=8)


def test_half_precision_of_kept_values_hardly_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Residual().eval()
    images = pictures(90).float()
    graph = trace(model, images[:1])
    plan = Plan.of(graph, {"a1:out": KEEP, "b1:out": KEEP})
    whole = repair(graph, plan, images)
    monkeypatch.setattr(lockstep, "used_memory", lambda: 2**50)
    monkeypatch.setattr(lockstep, "checkpoints", lambda stops, *_: [True] * len(stops.sizes))
    bounded = repair(graph, plan, images, memory="100M")
    fresh = pictures(20, seed=1).float()
    with torch.no_grad():
        want, got, cut = whole(fresh), bounded(fresh), prune(graph, plan)(fresh)
    assert 0 < (got - want).norm() < 0.003 * (cut - want).norm()


def test_sizes_in_words() -> None:
    assert parse_memory("4G") == parse_memory("4 GiB") == parse_memory("4096mb") == 4 * 2**30
    assert parse_memory("1.5g") == 3 * 2**29 and parse_memory(10**9) == 10**9
    graph = trace(nn.Sequential(nn.Conv2d(3, 6, 1), nn.Conv2d(6, 2, 1)).double(), pictures(1))
    for bad in ("much", "-4G", "5M", "", 0):
        with pytest.raises(RunError, match="memory must be a size such as 4G"):
            repair(graph, Plan.of(graph, {"0:out": [1]}), pictures(), memory=bad)
