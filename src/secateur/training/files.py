"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from secateur.errors import FileError


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, then rename over it: a reader sees the old file or the new one.

    On any failure (a full disk, a folder without permission) the old file is as it was and FileError names the path.
    """
    # One name for all attempts: what a kill left half-written is overwritten by the next try, and does not pile up.
    spare = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with spare.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(path)
    except OSError as error:
        if spare.is_file() or spare.is_symlink():
            spare.unlink()
        raise FileError(
            f"{path} cannot be written: {error.strerror or error}; what was there before is kept"
        ) from error
