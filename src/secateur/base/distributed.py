"""Merging results of several processes, each of which reads its share of the images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from secateur.errors import ScoreError

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
    found = [all_or_none(lambda: work() if dist.get_rank() == 0 else None)]
    dist.broadcast_object_list(found)
    result: T = found[0]  # type: ignore[assignment]
    return result


def check_even(images: int) -> None:
    """Raise ScoreError unless all processes have read the same number of images."""
    if processes() == 1:
        return
    counts = torch.zeros(processes())
    counts[dist.get_rank()] = images
    shares = [int(n) for n in add_up(counts)]
    if len(set(shares)) > 1:
        raise ScoreError(
            f"{processes()} processes must read equal shares of the images, but they read "
            f"{', '.join(map(str, shares))}; give each the same number of batches, or leave out the last images"
        )
