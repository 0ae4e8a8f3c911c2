"""What a run would take: time and memory, from a few batches."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from secateur.base.batches import call, device_of, logits_of, move, order_channels_last
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.measuring.outputs import tensors_of
from secateur.measuring.tasks import Task, is_classification, task_of
from secateur.training.rate_test import SHARES, steps_per_try

BATCH = 128  # images of a training step
SECONDS = 4.0  # about what each measurement may take
TURNS = 5  # at most; the median counts
PARTIAL = 0.5  # a trial of a unit runs, on average, the half of the network that follows it


@dataclass(frozen=True)
class Speed:
    """Measured on this machine, with the number of threads that torch uses now."""

    forward: float  # seconds for an image, in eval mode
    train: float  # seconds for an image: forward, backward and the step of the optimizer
    batch_size: int  # of both measurements
    memory: int | None  # bytes: the largest size of the process so far, at 128 images a step; None if not known


@dataclass(frozen=True)
class RoundEstimate:
    """Seconds of the parts of one round, by default settings."""

    score: float  # all training images, one forward pass
    rank: float  # at most: every unit is tried on all held-out images, each time from the unit on
    epoch: float  # of retraining
    steps: int  # in an epoch

    def run(self, rounds: int, epochs: int) -> float:
        """Seconds of a run that retrains after each round, at a rate that a short test chooses."""
        tried = len(SHARES) * steps_per_try(self.steps, epochs) / self.steps  # in epochs
        return rounds * (self.score + self.rank + (tried + epochs) * self.epoch)


def measure_speed(model: nn.Module, images: Any, task: Task | None = None) -> Speed:
    """Time a forward pass and a training step on copies of the model. `images` are repeated to fill a batch."""
    small = _rows(images, 2)
    per_image = _median(lambda: _forward(model, small)) / 2
    size = int(min(BATCH, max(2, SECONDS / TURNS / (4 * per_image))))  # a training step is 3 to 4 forward passes
    batch = _rows(images, size)
    forward = _median(lambda: _forward(model, batch)) / size
    train = _median(_training_step(model, batch, is_classification(task_of(task)))) / size
    peak = peak_memory(device_of(model))
    more = BATCH - size  # images of a full step that were left out here
    memory = None if peak is None else peak + (more * _saved_for_backward(model, small) // 2 if more else 0)
    return Speed(forward, train, size, memory)


def estimate(speed: Speed, train_images: int, held_out: int, units: int, *, teacher: bool = True) -> RoundEstimate:
    """Time of a round, from the speed and the numbers of images and units.

    teacher: whether the unpruned network teaches, with a forward pass in every step.
    """
    step = speed.train + speed.forward * teacher
    return RoundEstimate(
        score=speed.forward * train_images,
        rank=PARTIAL * speed.forward * held_out * units,
        epoch=step * train_images + speed.forward * held_out,
        steps=max(1, train_images // BATCH),
    )


def peak_memory(device: torch.device) -> int | None:
    """Bytes that the process, or torch on a GPU, has taken at most so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        import resource
    except ImportError:  # Windows
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(size) if sys.platform == "darwin" else 1024 * int(size)


def _rows(images: Any, count: int) -> Any:
    """The first `count` images, repeated if there are fewer; of several inputs, of each."""

    def rows(x: Any) -> Any:
        return x.repeat(-(-count // len(x)), *[1] * (x.ndim - 1))[:count] if isinstance(x, Tensor) else x

    return tree_map(rows, images)


def _forward(model: nn.Module, batch: Any) -> None:
    with evaluating(model), torch.no_grad():
        call(model, batch)


def _training_step(model: nn.Module, batch: Any, classifies: bool) -> Callable[[], None]:
    """One step of a copy of the model, as `fit` trains; labels do not change its time, and the loss hardly does."""
    copied = order_channels_last(copy.deepcopy(model)).train().requires_grad_(True)
    optimizer = torch.optim.SGD(copied.parameters(), lr=1e-9, momentum=0.9, nesterov=True)
    batch = move(batch, device_of(model), channels_last=True)

    def loss(output: Any) -> Tensor:
        if not classifies:
            return torch.stack([x.float().square().mean() for x in tensors_of(output)]).sum()
        logits = logits_of(output)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss(call(copied, batch)))
        optimizer.step()

    return step


def _saved_for_backward(model: nn.Module, batch: Any) -> int:
    """Bytes that a forward pass in training keeps for the backward pass, without the weights."""
    copied = copy.deepcopy(model).train().requires_grad_(True)
    weights = {tensor.untyped_storage().data_ptr() for tensor in copied.state_dict(keep_vars=True).values()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with generators_kept(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = call(copied, batch)  # it must live: it holds what was saved
        del output
    return sum(kept.values())


def _median(work: Callable[[], None]) -> float:
    """Seconds of one call; the first call is not counted."""
    seconds: list[float] = []
    with generators_kept():
        work()
        while len(seconds) < TURNS and sum(seconds) < SECONDS / 2:
            _wait_for_gpu()
            start = time.perf_counter()
            work()
            _wait_for_gpu()
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]


def _wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
