"""Which batches each process gets when several train together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from secateur.base.batches import Batch, Batches
from secateur.errors import DataError, RunError

if TYPE_CHECKING:
    from accelerate import Accelerator


class EveryNth:
    """Batches rank, rank + world, rank + 2 world, ... of a loader that every process reads from the start."""

    def __init__(self, loader: Batches, rank: int, world: int) -> None:
        self._loader, self._rank, self._world = loader, rank, world

    def __iter__(self) -> Iterator[Batch]:
        return islice(iter(self._loader), self._rank, None, self._world)

    def __len__(self) -> int:
        return max(0, -(-(length(self._loader) - self._rank) // self._world))


def training_share(loader: Batches, accelerator: Accelerator) -> Batches:
    """This process's batches of a training loader.

    A loader made for this rank and world (`loader.world` or `loader.order.world`) is a share already. Accelerate
    divides a DataLoader. Of any other loader each process takes every n-th batch. One step
    sees one batch of each process.
    """
    if accelerator.num_processes == 1 or _shared_already(loader, accelerator.num_processes):
        return loader
    if isinstance(loader, DataLoader):
        return accelerator.prepare_data_loader(loader)  # type: ignore[no-any-return]
    return EveryNth(loader, accelerator.process_index, accelerator.num_processes)


def holdout_share(loader: Batches, accelerator: Accelerator) -> Batches:
    """This process's batches of a held-out loader: each image is in one share only, unlike with Accelerate."""
    world = accelerator.num_processes
    if world == 1 or _shared_already(loader, world) or length(loader) < world:
        return loader  # fewer batches than processes: all read all of it, and the merged accuracy is the same
    return EveryNth(loader, accelerator.process_index, world)


def steps_of(loader: Batches, accelerator: Accelerator) -> int:
    """Steps of an epoch, the same in all processes: one with more steps would wait for the others forever."""
    steps = length(loader)
    if accelerator.num_processes > 1:
        steps = int(accelerator.gather(torch.tensor([steps], device=accelerator.device)).min())
    if steps < 1:
        raise DataError("there is nothing to train on: the loader has no batches; check the part, split and limit")
    return steps


def length(loader: Batches) -> int:
    """len(loader); RunError if it has none, because schedules need the length of an epoch."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError as error:
        raise RunError(
            f"training needs a loader with a length, got {type(loader).__name__} without one (and a generator can be "
            "read only once): pass a list of batches or a DataLoader over a data set with a length"
        ) from error


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader and its samplers which epoch begins, if they have `set_epoch`."""
    for listener in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        tell = getattr(listener, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def _shared_already(loader: Any, world: int) -> bool:
    order = getattr(loader, "order", loader)  # secateur.zoo.data keeps rank and world in the loader's order
    return int(getattr(order, "world", 1)) == world
