"""Time of a forward pass. Several models take turns in one run, so that their ratio is meaningful, with an interval."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from prunus.errors import DataError, RunError
from prunus.timing.engines import ENGINES, PreparedModel
from prunus.util.batches import to_device
from prunus.util.progress import Progress
from prunus.util.state import evaluating


@dataclass(frozen=True)
class Timing:
    """Seconds of one forward pass of a batch: the median over the rounds, and the quartiles as its spread.

    Attributes:
        name: Of the model.
        batch_size: Images in the batch.
        median: Seconds.
        quartiles: Seconds, lower and upper.
        rounds: Number of turns.
        seconds: Of each turn; those of two models are pairs, see `speedup`.
    """

    name: str
    batch_size: int
    median: float
    quartiles: tuple[float, float]
    rounds: int
    seconds: tuple[float, ...] = ()

    @property
    def spread(self) -> float:
        """(upper quartile - lower quartile) / median. 0.05 means a quiet machine; do not trust a figure at 0.5."""
        return (self.quartiles[1] - self.quartiles[0]) / self.median

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.median


def latency(
    models: Mapping[str, nn.Module | Callable[[Any], Any]],
    example: Any,
    *,
    engine: str = "eager",
    batch_sizes: Sequence[int] = (1, 64),
    rounds: int = 20,
    warmup: int = 3,
    threads: int | None = None,
    cpu_time: bool = False,
    progress: Progress | None = None,
) -> list[Timing]:
    """Median forward time of each model at each batch size, on the device of each model, without gradients.

    Models take turns within a round, and every second round runs in reverse order, so that other load on the machine
    affects all of them equally. Train / eval modes are restored afterwards.

    Args:
        models: Networks, which run in `engine`, or callables that take a batch, which are timed as they are.
        example: A batch of one or more images [N, C, H, W], or a tuple or dict of tensors; a batch repeats its images.
        engine: The engine that runs the networks, by name.
        batch_sizes: Images in a batch.
        rounds: Number of turns of each model.
        warmup: Turns before them, which do not count.
        threads: Number of CPU threads; PyTorch's current number if not given.
        cpu_time: Measure processor time, summed over threads, instead of wall-clock time. It varies less on a machine
            that runs other programs too; use it with one thread.
        progress: Called with the batch sizes done and their number.
    """
    check_turns(models, rounds, batch_sizes, warmup)
    check_example(example)
    timings: list[Timing] = []
    networks = [model for model in models.values() if isinstance(model, nn.Module)]
    with ready_to_time(networks, threads):
        prepared = dict[str, PreparedModel]()
        for name, model in models.items():
            if isinstance(model, nn.Module):
                model = prepare(model, engine, example, batch_sizes)
            prepared[name] = model if isinstance(model, PreparedModel) else PreparedModel(model, torch.device("cpu"))
        for done, size in enumerate(batch_sizes):
            batch = repeated(example, size)
            runs = [partial(model.run, to_device(batch, model.device)) for model in prepared.values()]
            devices = [model.device for model in prepared.values()]
            seconds = take_turns(runs, devices, warmup=warmup, rounds=rounds, cpu_time=cpu_time)
            for name, values in zip(prepared, seconds, strict=True):
                low, median, high = map(float, np.percentile(values, (25, 50, 75)))
                timings.append(Timing(name, size, median, (low, high), len(values), tuple(values)))
            if progress is not None:
                progress(done + 1, len(batch_sizes))
    return timings


def check_turns(models: Sized, rounds: int, batch_sizes: Sequence[int], warmup: int = 0) -> None:
    """RunError unless there is something to time, at least once."""
    if isinstance(batch_sizes, int):
        raise RunError(f"batch sizes must be several numbers, as in ({batch_sizes},); got {batch_sizes}")
    if rounds < 1 or warmup < 0 or min(batch_sizes, default=0) < 1 or not models:
        raise RunError(
            f"expected models, rounds >= 1, warmup >= 0 and batch sizes >= 1; got {len(models)} models, {rounds}, "
            f"{warmup}, {tuple(batch_sizes)}"
        )


@contextmanager
def ready_to_time(models: Iterable[nn.Module], threads: int | None) -> Iterator[None]:
    """Models in eval mode, no gradients, and PyTorch on this number of threads; all of it is restored afterwards."""
    before = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise RunError(f"threads must be at least 1, got {threads}")
    with ExitStack() as stack, torch.no_grad():
        for model in models:
            stack.enter_context(evaluating(model))
        if threads is not None:
            stack.callback(torch.set_num_threads, before)
            torch.set_num_threads(threads)
        yield


def prepare(model: nn.Module, engine: str, example: Any, batch_sizes: Sequence[int]) -> PreparedModel:
    """The model ready to run in an engine at these batch sizes. Call it inside `ready_to_time`."""
    prepared = ENGINES.find(engine).prepare(model, example, torch.get_num_threads())
    for size in batch_sizes:
        prepared.specialize(to_device(repeated(example, size), prepared.device))
    return prepared


def repeated(example: Any, size: int) -> Any:
    """A batch of `size` images: the example's images, repeated as often as needed."""

    def stretch(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        return value.repeat(-(-size // len(value)), *[1] * (value.dim() - 1))[:size].contiguous()

    return tree_map(stretch, example)


def check_example(example: Any) -> None:
    """DataError unless the example is a batch of at least one image, or of several inputs."""
    tensors = [value for value in tree_flatten(example)[0] if isinstance(value, Tensor)]
    if not tensors or tensors[0].dim() < 2 or any(value.dim() and not len(value) for value in tensors):
        got = [list(value.shape) for value in tensors] or type(example).__name__
        raise DataError(f"the example should be a batch of at least one image [N, C, H, W], got {got}")


# -- turns

LARGEST_KEPT = 2**25 - 2**16  # bytes, just below the largest block that glibc keeps when it is freed (32 MiB)


def processor_time(device: torch.device, threads: int) -> bool:
    """Whether to measure processor time: on one thread it is what a quiet machine would take, whatever else runs."""
    return device.type == "cpu" and threads == 1


def take_turns(
    runs: Sequence[Callable[[], Any]],
    devices: Sequence[torch.device],
    *,
    warmup: int,
    rounds: int,
    repeats: int = 0,
    cpu_time: bool = False,
) -> list[list[float]]:
    """Seconds of each run in each round. Every second round is in reverse order.

    With `repeats`, a turn is a call without timing, and then this number of timed calls, all of which count: so a run
    finds in the processor's caches what its last call left there. By default a turn is one call.
    """
    keep_freed_memory()
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(-warmup, rounds):
        order = range(len(runs)) if turn % 2 == 0 else range(len(runs) - 1, -1, -1)
        for place in order:
            if repeats:
                runs[place]()
            spent = [timed(runs[place], devices[place], cpu_time) for _ in range(repeats or 1)]
            if turn >= 0:
                seconds[place] += spent
    return seconds


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next call, as it does in a program that has run for a while.

    glibc returns large blocks to the system until it has seen one of that size freed, or one on top of the heap. Each
    call then waits for the system to clear the same memory again, and a narrower network, with smaller blocks, may not.
    One large block, freed at once, settles it for all.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def timed(run: Callable[[], Any], device: torch.device, cpu_time: bool = False) -> float:
    """Seconds of one call. A GPU is asked by its own events; its calls return before the work is done."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(device)
            begin.record()
            run()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) / 1e3
    clock = time.process_time if cpu_time else time.perf_counter
    if device.type != "cpu":
        torch.accelerator.synchronize()
    start = clock()
    run()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return clock() - start


# -- speed-up

CONFIDENCE = 0.95
NO_DIFFERENCE = "no measurable difference"


@dataclass(frozen=True)
class Speedup:
    """Median of the ratios of paired turns, and its 95% confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def measurable(self) -> bool:
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        if not self.measurable:
            return NO_DIFFERENCE
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


def speedup(before: Sequence[float], after: Sequence[float]) -> Speedup:
    """The speed of `after` relative to `before`, from the seconds of turns that were taken in pairs.

    Both networks of a pair ran right after each other, so that other load affects both. The interval is that of the
    sign test, which assumes nothing about the distribution: with the n ratios sorted, it reaches from the k-th smallest
    to the k-th largest, where k is the largest number with 2 P(Binomial(n, 1/2) < k) <= 0.05. Fewer than six pairs
    give no interval: it is then from 0 to infinity.
    """
    ratios = sorted(was / now for was, now in zip(before, after, strict=True))
    if not ratios:
        return Speedup(math.nan, 0.0, math.inf)
    pairs, k, below = len(ratios), 0, 0
    while 2 * (below + math.comb(pairs, k)) <= (1 - CONFIDENCE) * 2**pairs:
        below += math.comb(pairs, k)
        k += 1
    low, high = (ratios[k - 1], ratios[-k]) if k else (0.0, math.inf)
    return Speedup(statistics.median(ratios), low, high)
