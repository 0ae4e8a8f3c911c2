"""The processes that torchrun starts share the rows of a study: each works alone, and they meet in the study's folder.

Rows are independent of each other (one metric, one ratio, one seed), so there is no gain from several processes working
on the same row. A table computed by one process is the same, bit for bit, as a table computed by ten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secateur.base.distributed import processes
from secateur.errors import RunError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # variables by which Accelerate finds the others
SECONDS_BETWEEN_CHECKS = 0.2


@contextmanager
def processes_apart() -> Iterator[tuple[int, int]]:
    """(rank of this process, number of processes). Inside the block, scoring and training see only this process."""
    if processes() > 1:
        raise RunError(
            "this study shares its rows among processes, and each process works alone: call it under torchrun without "
            "initialising torch.distributed first"
        )
    found = {name: os.environ.pop(name) for name in TORCHRUN if name in os.environ}
    try:
        yield int(found.get("RANK", 0)), int(found.get("WORLD_SIZE", 1))
    finally:
        os.environ.update(found)


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait until `ready()` is true. If another process fails, torchrun ends this one.

    If torchrun itself was killed, this process notices that its parent has changed and raises RunError.
    """
    parent = os.getppid()
    while not ready():
        if os.getppid() != parent:
            raise RunError("the process that started this one has ended, so the other processes' rows will not come")
        time.sleep(SECONDS_BETWEEN_CHECKS)
