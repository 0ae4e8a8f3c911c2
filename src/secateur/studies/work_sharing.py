"""A study's pieces shared among the processes that torchrun starts: each works on its own, and they meet in the folder.

Pieces are independent of each other (one metric, one ratio, one seed), so that nothing is gained by all processes
working on each of them; and a table that one process fills is the same, bit for bit, as one that ten have filled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secateur.base.distributed import processes
from secateur.errors import RunError

TOGETHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # torchrun's words; Accelerate joins by them
SECONDS_BETWEEN_LOOKS = 0.2


@contextmanager
def on_its_own() -> Iterator[tuple[int, int]]:
    """(number of this process, how many there are); within the block scoring and training do not know of the others."""
    if processes() > 1:
        raise RunError(
            "this study shares its pieces among processes by itself, and each works on its own: call it under torchrun "
            "without setting up torch.distributed first"
        )
    found = {name: os.environ.pop(name) for name in TOGETHER if name in os.environ}
    try:
        yield int(found.get("RANK", 0)), int(found.get("WORLD_SIZE", 1))
    finally:
        os.environ.update(found)


def wait_until(there: Callable[[], bool]) -> None:
    """Look again and again; torchrun ends this process if the one that it waits for fails.

    A torchrun that was killed itself cannot: a process that has lost its parent gives up.
    """
    parent = os.getppid()
    while not there():
        if os.getppid() != parent:
            raise RunError("the process that started this one and others is gone, so nobody does the others' share")
        time.sleep(SECONDS_BETWEEN_LOOKS)
