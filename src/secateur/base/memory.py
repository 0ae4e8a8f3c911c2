"""How much memory there is, and how much this process has taken."""

from __future__ import annotations

import os
import re
from pathlib import Path

from secateur.errors import RunError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
LEAST = 100 * 10**6
UNKNOWN = 8 * 2**30  # memory of a machine that does not say


def bytes_of_words(words: str | int) -> int:
    """Bytes from words such as 4G, 500M or 1.5 GiB, or from a number. Anything else is refused."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(words).upper())
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if size < LEAST:
        raise RunError(f"memory must be a size such as 4G or 500M, at least 100M; got {words!r}")
    return size


def total_memory() -> int:
    """Memory of the machine, or of the container if that is less."""
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        size = UNKNOWN
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
