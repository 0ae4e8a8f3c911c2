"""Devices and processes, with Accelerate: the rank of this process, and an Accelerator that leaves no state behind.

Accelerate keeps one global state for the whole Python process and refuses a second Accelerator with other settings.
But secateur may be called twice with two precisions, and its user may use Accelerate as well. So the state is created
temporarily, and the previous one is restored.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch

from secateur.errors import RunError

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
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # torch says "not compiled with CUDA" by AssertionError
        raise RunError(f"the device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return found


def check_precision(precision: str, device: torch.device) -> None:
    """RunError unless training on the device can have this precision."""
    if precision not in ("no", "bf16", "fp16"):
        raise RunError(f"mixed_precision should be no, bf16 or fp16, not {precision!r}")
    if precision == "fp16" and device.type == "cpu":
        raise RunError("fp16 needs a GPU; on the CPU use mixed_precision bf16 or no")


@contextmanager
def accelerating(device: torch.device | str | None, precision: Precision) -> Iterator[Accelerator]:
    """An Accelerator for `device` (None: the best available) and `precision`. Restores the global state afterwards."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm, in a notebook without ipywidgets
        from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    device = None if device is None else usable(device)
    processes = _partial_state(device)
    found_device = processes.device
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for kind in (AcceleratorState, GradientState):
        found.append((kind._shared_state, dict(kind._shared_state)))
        kind._shared_state.clear()
    try:
        if device is not None and processes.num_processes == 1:
            processes.device = device
        check_precision(precision, processes.device)
        yield Accelerator(mixed_precision=precision, cpu=processes.device.type == "cpu")
    finally:
        processes.device = found_device
        for shared, before in found:
            shared.clear()
            shared.update(before)


def _partial_state(device: torch.device | str | None) -> Any:
    from accelerate import PartialState

    # Without cpu=True Accelerate starts each torchrun process on its own where there is no GPU.
    cpu = not torch.cuda.is_available() if device is None else torch.device(device).type == "cpu"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return PartialState(cpu=cpu and device is not None)
    return PartialState(cpu=cpu)
