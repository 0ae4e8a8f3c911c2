"""Files: written whole or not at all, JSON objects read, and folders that belong to something else refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prunus.errors import FileError, RunError


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


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with atomic(path) as spare:
        spare.write_bytes(content)


def write_json(path: Path, record: Any) -> None:
    """Write plain values as JSON, completely or not at all."""
    write_atomically(path, f"{json.dumps(record, indent=2)}\n".encode())


def check_writable(folder: Path) -> None:
    """FileError if no file can be written to a folder, which is made: before long work, not after it."""
    probe = folder / ".writable.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"nothing can be written to {folder}: {error.strerror or error}") from error


def read_object(path: Path, otherwise: str = "") -> dict[str, Any]:
    """The JSON object in a file. FileError says what is wrong; `otherwise` is added to the message if it is missing."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing{otherwise}") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise FileError(f"{path} must hold a JSON object, but holds {type(data).__name__}")
    return data


# What a folder holds, as far as prunus has written it. Verbs refuse a folder that belongs to something else.

PRUNING, TRAINING, STUDY, ROUND = "a pruning run", "a training run", "a study", "a round of a pruning run"
PRUNED, SCORES, SENSITIVITY, CURVE = "a pruned network", "scores", "a sensitivity analysis", "a curve"

# The files that only these have, in the order in which they are looked for.
_FILES = {
    ROUND: ("round.json", "step-plan.json"),
    TRAINING: ("checkpoint.safetensors", "metrics.jsonl"),
    PRUNED: ("plan.json",),
    SENSITIVITY: ("sensitivity.json",),
    SCORES: ("scores.json",),
    CURVE: ("curve.json",),
}


def held_by(folder: Path) -> str | None:
    """What prunus wrote into a folder, in words; None if it wrote nothing there."""
    try:
        config = read_object(folder / "config.json")
    except FileError:
        config = {}
    if "study" in config:
        return STUDY
    if config.keys() & {"settings", "command", "fingerprint"}:
        return PRUNING
    return next((what for what, names in _FILES.items() if any((folder / name).is_file() for name in names)), None)


def refuse_others(folder: Path, what: str, *writes: str, beside: tuple[str, ...] = ()) -> None:
    """RunError if a folder belongs to something other than `what`, one of the constants above, or `beside`.

    `writes` are the files of `what`: in a folder that prunus does not know, they are somebody else's.
    """
    if folder.is_file():
        raise RunError(f"{folder} is a file; name a folder for {what}")
    content = held_by(folder)
    if content in (what, *beside):
        return
    if content is not None:
        raise RunError(f"{folder} holds {content}, and {what} would overwrite or mix up its files; use another folder")
    if taken := next((name for name in writes if (folder / name).exists()), None):
        raise RunError(f"{folder} holds {taken}, which is not that of {what}; use another folder")


def refuse_overwriting(file: Path) -> None:
    """RunError if a file exists and belongs to a run, a study or a pruned network."""
    content = held_by(file.parent)
    if content is not None and file.exists():
        raise RunError(f"{file} belongs to {content}; write to another file")
