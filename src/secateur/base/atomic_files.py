"""Files that are written whole or not at all, the one way in which secateur writes; and JSON read back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secateur.errors import FileError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A neighbour of `path` to write to, which is flushed to the disk and takes its place when the block ends.

    A reader sees the old file or the new one. On any failure (a full disk, a folder without permission) the old file
    is as it was, and FileError names the path.
    """
    # One name for all attempts: what a kill left half-written is overwritten by the next try, and does not pile up.
    spare = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield spare
        with spare.open("rb") as written:
            os.fsync(written.fileno())
        spare.replace(path)
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror or error}; what was there before is kept"
        ) from error
    finally:
        if spare.is_file() or spare.is_symlink():
            spare.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with atomic(path) as spare:
        spare.write_bytes(content)


def read_object(path: Path, otherwise: str = "") -> dict[str, Any]:
    """The JSON object in a file. FileError says what is wrong with it; `otherwise` is added where it is missing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing{otherwise}") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} should hold a JSON object, and holds {type(found).__name__}")
    return found
