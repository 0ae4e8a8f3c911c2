"""Devices, processes and memory, with Accelerate: an Accelerator that leaves no state behind.

Accelerate keeps one global state for the whole Python process and refuses a second Accelerator with other settings.
But prunus may be called twice with two precisions, and its user may use Accelerate as well. So the state is created
temporarily, and the previous one is restored.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
from torch import Tensor
from torch import distributed as dist

from prunus.errors import RunError, ScoreError

if TYPE_CHECKING:
    from accelerate import Accelerator


Precision = Literal["no", "bf16", "fp16"]


def rank_and_world(device: torch.device | str | None = None) -> tuple[int, int]:
    """(rank of this process, number of processes). Joins the processes first if torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return 0, 1  # the usual case needs no import of Accelerate, which takes a second
    state = _partial_state(device)
    return state.process_index, state.num_processes


def leave() -> None:
    """Leave the process group at the end of a program; torch warns about processes that just exit."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def best_device() -> torch.device:
    """An accelerator if there is one (CUDA, MPS, ...), else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def usable(device: torch.device | str) -> torch.device:
    """`device` as torch.device; RunError if this machine or this build of torch does not have it."""
    try:
        usable_device = torch.device(device)
        torch.empty(0, device=usable_device)
    except (RuntimeError, AssertionError) as error:  # torch says "not compiled with CUDA" by AssertionError
        raise RunError(f"the device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return usable_device


def check_precision(precision: str, device: torch.device) -> None:
    """RunError unless training on the device can have this precision."""
    if precision not in ("no", "bf16", "fp16"):
        raise RunError(f"mixed_precision should be no, bf16 or fp16, not {precision!r}")
    if precision == "fp16" and device.type == "cpu":
        raise RunError("fp16 needs a GPU; on the CPU use mixed_precision bf16 or no")


def has_bf16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself, so that training in it is faster."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


@contextmanager
def accelerating(device: torch.device | str | None, precision: Precision) -> Iterator[Accelerator]:
    """An Accelerator for `device` (None: the best available) and `precision`. Restores the global state afterwards."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm, in a notebook without ipywidgets
        from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    device = None if device is None else usable(device)
    state = _partial_state(device)
    device_before = state.device
    shared_before = [(kind._shared_state, dict(kind._shared_state)) for kind in (AcceleratorState, GradientState)]
    for shared, _ in shared_before:
        shared.clear()
    try:
        if device is not None and state.num_processes == 1:
            state.device = device
        check_precision(precision, state.device)
        yield Accelerator(mixed_precision=precision, cpu=state.device.type == "cpu")
    finally:
        state.device = device_before
        for shared, before in shared_before:
            shared.clear()
            shared.update(before)


def _partial_state(device: torch.device | str | None) -> Any:
    from accelerate import PartialState

    if device is not None:
        return PartialState(cpu=torch.device(device).type == "cpu")
    # Without cpu=True Accelerate starts each torchrun process on its own where there is no GPU.
    return PartialState(cpu=os.environ.get("WORLD_SIZE", "1") != "1" and not torch.cuda.is_available())


# Merging results of several processes, each of which reads its share of the images.

T = TypeVar("T")


def processes() -> int:
    """The number of processes; 1 unless torch.distributed has been set up (torchrun, Accelerate)."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def add_up(tensor: Tensor) -> Tensor:
    """The sum of `tensor` over all processes, returned in each of them."""
    if processes() == 1:
        return tensor.clone()
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    total = tensor.detach().to(device, copy=True)
    dist.all_reduce(total)
    return total.to(tensor.device)


def all_or_none(work: Callable[[], T]) -> T:
    """Run `work`, and raise an error in all processes if it fails in one, so that none waits forever for another."""
    if processes() == 1:
        return work()
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:  # noqa: BLE001  (raised again below, after the others were told)
        failure = error
    failed = add_up(torch.tensor([float(failure is not None)]))
    if failure is not None:
        raise failure
    if failed.item():
        raise ScoreError(f"{int(failed.item())} of {processes()} processes failed; see their own messages")
    return result


def from_first(work: Callable[[], T]) -> T:
    """What `work` returns in the first process, in all of them. The others wait, and fail if it fails."""
    if processes() == 1:
        return work()
    results = [all_or_none(lambda: work() if dist.get_rank() == 0 else None)]
    dist.broadcast_object_list(results)
    return cast("T", results[0])


def check_even(images: int) -> None:
    """Raise ScoreError unless all processes have read the same number of images."""
    if processes() == 1:
        return
    mine = torch.arange(processes()) == dist.get_rank()
    shares = add_up(images * mine).tolist()
    if len(set(shares)) > 1:
        raise ScoreError(
            f"{processes()} processes must read equal shares of the images, but they read "
            f"{', '.join(map(str, shares))}; give each the same number of batches, or leave out the last images"
        )


# How much memory there is, and how much this process has taken.


def total_memory() -> int:
    """Memory of the machine, or of the container if that is less."""
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        size = 8 * 2**30  # the system does not say
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no limit, or no such file
        limit = size
    return min(size, limit)


def used_memory() -> int:
    """What this process holds now; 0 if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
