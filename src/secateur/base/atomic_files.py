"""Atomic writing of files, which all of secateur uses, and reading of JSON."""

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
    """A temporary file next to `path`. When the block ends it is flushed to the disk and replaces `path`.

    Readers see either the old file or the new one. On any failure (a full disk, no permission) the old file stays as it
    was, and FileError names the path.
    """
    # All attempts use one name, so that files left by killed processes are overwritten and do not accumulate.
    spare = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        spare.unlink(missing_ok=True)
        spare.touch()
        mode = spare.stat().st_mode & 0o777  # what the user's umask leaves; some writers let only the owner read
        yield spare
        spare.chmod(mode)
        with spare.open("rb") as written:
            os.fsync(written.fileno())
        spare.replace(path)
    except OSError as error:
        kept = "; the previous file is kept" if os.path.isfile(path) else ""  # noqa: PTH113  Path.is_file may raise
        raise FileError(f"{path} cannot be written: {error.strerror or error}{kept}") from error
    finally:
        if spare.is_file() or spare.is_symlink():
            spare.unlink()


def check_writable(folder: Path) -> None:
    """FileError if no file can be written to a folder, which is made: before long work, not after it."""
    probe = folder / ".writable.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"nothing can be written to {folder}: {error.strerror or error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with atomic(path) as spare:
        spare.write_bytes(content)


def read_object(path: Path, otherwise: str = "") -> dict[str, Any]:
    """The JSON object in a file. FileError says what is wrong; `otherwise` is added to the message if it is missing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing{otherwise}") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} must hold a JSON object, but holds {type(found).__name__}")
    return found
