"""latency() with a fake clock, so that medians and quartiles are known exactly."""

from __future__ import annotations

import importlib
import math
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunus.errors import DataError, RunError
from prunus.timing.latency import NO_DIFFERENCE, Speedup, latency, speedup
from tests.clock import Clock


class Slow(nn.Module):
    """Takes the next of `seconds` (times the batch size) and records the call."""

    def __init__(self, name: str, seconds: list[float], clock: Clock, calls: list[tuple[str, int]]) -> None:
        super().__init__()
        self.name, self.seconds, self.clock, self.calls = name, seconds, clock, calls
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.calls.append((self.name, len(images)))
        self.modes.append(self.training)
        self.clock.now += self.seconds[len(self.modes) - 1] * len(images)
        return images


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ours = Clock()
    module = importlib.import_module("prunus.timing.latency")
    monkeypatch.setattr(module, "time", ours)
    return ours


def test_medians_quartiles_and_turns(clock: Clock) -> None:
    calls: list[tuple[str, int]] = []
    warm = [90.0, 90.0]  # must not count
    a = Slow("a", [*warm, 1.0, 2.0, 3.0, 4.0, 100.0], clock, calls)
    b = Slow("b", [*warm, 5.0, 5.0, 5.0, 5.0, 5.0], clock, calls)
    first, second = latency({"a": a, "b": b}, torch.zeros(1, 3, 4, 4), batch_sizes=(2,), rounds=5, warmup=2)
    assert (first.name, first.batch_size, first.rounds) == ("a", 2, 5)
    assert first.median == 6.0  # of 2, 4, 6, 8, 200: one outlier does not move it
    assert first.quartiles == (4.0, 8.0)
    assert first.spread == pytest.approx(4 / 6)
    assert first.images_per_second == pytest.approx(2 / 6)
    assert (second.median, second.spread) == (10.0, 0.0)
    assert "".join(name for name, _size in calls) == "abbaabbaabbaab" and {size for _name, size in calls} == {2}
    model = Slow("a", [90.0, 1.0, 2.0, 3.0], clock, [])
    (found,) = latency({"a": model}, torch.zeros(1, 3, 4, 4), batch_sizes=(2,), rounds=3, warmup=1, cpu_time=True)
    assert found.median == 1.0  # processor time: a quarter of 2 x 2 seconds


def test_batch_sizes_repeat_the_example_and_modes_come_back(clock: Clock) -> None:
    calls: list[tuple[str, int]] = []
    model = Slow("a", [1.0] * 4, clock, calls).train()
    heard: list[tuple[int, int]] = []
    models = {"a": model, "f": lambda batch: calls.append(("f", len(batch)))}
    once = {"batch_sizes": (1, 7), "rounds": 1, "warmup": 1}
    hear = lambda done, total: heard.append((done, total))
    timings = latency(models, torch.arange(3.0).view(3, 1, 1, 1), progress=hear, **once)  # type: ignore[arg-type]
    expected = [("a", 1, 1.0), ("f", 1, 0.0), ("a", 7, 7.0), ("f", 7, 0.0)]
    assert [(t.name, t.batch_size, t.median) for t in timings] == expected
    assert model.training and model.modes == [False] * 4
    assert heard == [(1, 2), (2, 2)]
    assert [size for _name, size in calls] == [1] * 4 + [7] * 4
    seen: list[list[list[int]]] = []  # several inputs
    several = {"images": torch.zeros(2, 3, 4, 4), "sizes": torch.zeros(2, 1)}
    look = lambda batch: seen.append([list(t.shape) for t in batch.values()])
    latency({"f": look}, several, batch_sizes=(5,), rounds=1, warmup=0)
    assert seen == [[[5, 3, 4, 4], [5, 1]]]


def test_in_another_engine_and_with_other_threads() -> None:
    threads: list[int] = []
    before = torch.get_num_threads()
    models = {"a": nn.Linear(4, 2), "f": lambda _: threads.append(torch.get_num_threads())}
    found = latency(models, torch.zeros(1, 4), engine="onnxruntime", batch_sizes=(3,), rounds=2, warmup=0, threads=2)
    assert [(t.name, t.batch_size, t.rounds) for t in found] == [("a", 3, 2), ("f", 3, 2)]
    assert threads == [2, 2] and torch.get_num_threads() == before
    with pytest.raises(RunError, match="no engine called 'egaer': did you mean eager"):
        latency(models, torch.zeros(1, 4), engine="egaer")


@pytest.mark.parametrize(
    "images, how, complaint",
    [(1, {"rounds": 0}, "rounds"), (1, {"batch_sizes": (0,)}, "batch sizes"), (0, {}, r"\[0, 3\]")],
)
def test_bad_settings(images: int, how: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError if images == 0 else RunError, match=complaint):
        latency({"a": nn.Identity()}, torch.zeros(images, 3), **how)


FAULTS = """
import resource, torch
from prunus.timing.latency import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        several = [torch.ones(2**20) for _ in range(5)]  # 4 MiB each, all freed at the end of a round
        several = []
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
torch.ones(6 * 2**20)
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep freed memory in other ways")
def test_freed_memory_is_kept_so_that_large_images_do_not_cost_more() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < 20 * 1024, (before, after)  # pages: 5 blocks of 1,024 pages in 20 rounds would be 102,400


@pytest.mark.parametrize(("pairs", "rank"), [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6), (25, 8)])
def test_the_interval_is_between_ranks(pairs: int, rank: int) -> None:
    before = [float(n) for n in range(1, pairs + 1)]
    found = speedup(before, [1.0] * pairs)
    assert (found.low, found.high) == (rank, pairs + 1 - rank)
    assert found.ratio == (pairs + 1) / 2


def test_fewer_than_six_pairs_say_nothing_and_pairs_cancel_load_that_both_meet() -> None:
    load = [1.0, 10.0, 3.0, 1.0, 7.0, 2.0, 1.0, 9.0, 4.0, 1.0]
    assert speedup([2 * slow for slow in load], load) == Speedup(2.0, 2.0, 2.0)
    found = speedup([2.0] * 5, [1.0] * 5)
    assert (found.ratio, found.low, found.high) == (2.0, 0.0, math.inf)
    assert not found.measurable and str(found) == NO_DIFFERENCE and not speedup([], []).measurable
    assert str(Speedup(1.523, 1.401, 1.664)) == "1.52x (1.40 to 1.66)"
    assert str(Speedup(0.37, 0.2, 1.1)) == str(Speedup(1.6, 0.9, 3.0)) == "no measurable difference"


def test_equal_networks_are_rarely_told_apart() -> None:
    """Of 400 comparisons of equal networks, about 4.1% (of 20 pairs) exclude 1; 8% would be far outside of chance."""
    draw = random.Random(0)
    wrong = 0
    for _ in range(400):
        times = [[math.exp(draw.gauss(0, 0.5)) for _ in range(20)] for _ in range(2)]
        wrong += speedup(*times).measurable
    assert wrong <= 32
