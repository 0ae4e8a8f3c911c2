"""How long a forward pass takes: several models timed turn about in one run, so that a ratio means something."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base.batches import device_of
from secateur.base.preserve_state import evaluating
from secateur.errors import DataError, RunError

Runner = Callable[[Tensor], Any]  # an nn.Module, or any callable that takes a batch (a compiled or ONNX session)


@dataclass(frozen=True)
class Timing:
    """Seconds of one forward pass of a batch: the median over the rounds, and the quartiles as its spread."""

    name: str
    batch_size: int
    median: float
    quartiles: tuple[float, float]
    rounds: int

    @property
    def spread(self) -> float:
        """(upper quartile - lower quartile) / median: 0.05 is a quiet machine, 0.5 a figure not to be trusted."""
        return (self.quartiles[1] - self.quartiles[0]) / self.median

    @property
    def images_per_second(self) -> float:
        """Throughput at the median."""
        return self.batch_size / self.median


def latency(
    models: Mapping[str, Runner],
    example: Tensor,
    *,
    batch_sizes: Sequence[int] = (1, 64),
    rounds: int = 20,
    warmup: int = 3,
    cpu_time: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Timing]:
    """Median forward time of each model at each batch size, on the device each model is on; no gradients.

    `example` [1 or more, C, H, W] gives the images; a batch repeats them. Models take turns within a round, every
    second round in reverse order: whatever else the machine does meets all of them alike. Modes are put back.
    cpu_time: the processor's seconds instead of the clock's, summed over threads: on a machine that others use too,
        and with one thread, it is the steadier figure.
    """
    if rounds < 1 or warmup < 0 or min(batch_sizes, default=0) < 1 or not models:
        raise RunError(
            f"expected models, rounds >= 1, warmup >= 0, batch sizes >= 1; got {rounds}, {warmup}, {batch_sizes}"
        )
    if example.ndim < 2 or len(example) < 1:
        raise DataError(f"the example should be a batch of at least one image [N, C, H, W], not {list(example.shape)}")
    timings: list[Timing] = []
    with _all_evaluating(models), torch.no_grad():
        for done, size in enumerate(batch_sizes):
            seconds = _turn_about(models, _repeated(example, size), rounds, warmup, cpu_time)
            timings += [_timing(name, size, values) for name, values in seconds.items()]
            if progress is not None:
                progress(done + 1, len(batch_sizes))
    return timings


def _turn_about(
    models: Mapping[str, Runner], batch: Tensor, rounds: int, warmup: int, cpu_time: bool
) -> dict[str, list[float]]:
    clock = time.process_time if cpu_time else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in models}
    batches = {name: batch.to(_device(model)) for name, model in models.items()}
    for turn in range(-warmup, rounds):
        names = list(models) if turn % 2 == 0 else list(models)[::-1]
        for name in names:
            spent = _time(models[name], batches[name], clock)
            if turn >= 0:
                seconds[name].append(spent)
    return seconds


def _time(model: Runner, batch: Tensor, clock: Callable[[], float]) -> float:
    _wait_for(batch.device)
    start = clock()
    model(batch)
    _wait_for(batch.device)
    return clock() - start


def _wait_for(device: torch.device) -> None:
    """An accelerator returns before it is done: wait, or the clock sees only the launch."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _timing(name: str, size: int, seconds: list[float]) -> Timing:
    low, median, high = np.percentile(seconds, (25, 50, 75))
    return Timing(name, size, float(median), (float(low), float(high)), len(seconds))


def _repeated(example: Tensor, size: int) -> Tensor:
    copies = -(-size // len(example))
    return example.repeat(copies, *[1] * (example.ndim - 1))[:size].contiguous()


def _device(model: Runner) -> torch.device:
    return device_of(model) if isinstance(model, nn.Module) else torch.device("cpu")


@contextmanager
def _all_evaluating(models: Mapping[str, Runner]) -> Iterator[None]:
    with ExitStack() as stack:
        for model in models.values():
            if isinstance(model, nn.Module):
                stack.enter_context(evaluating(model))
        yield
