"""What a folder holds, as far as secateur has written it. Verbs refuse a folder that belongs to something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from secateur.errors import RunError

PRUNING, TRAINING, STUDY, ROUND = "a pruning run", "a training run", "a study", "a round of a pruning run"
PRUNED, SCORES, SENSITIVITY = "a pruned network", "scores", "a sensitivity analysis"

# What a folder holds is what the first of these finds, by the files that only it has.
_SIGNS: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    (STUDY, lambda folder: "study" in _config(folder)),
    (PRUNING, lambda folder: bool(_config(folder).keys() & {"settings", "command", "fingerprint"})),
    (ROUND, lambda folder: _any(folder, "round.json", "step-plan.json")),
    (TRAINING, lambda folder: _any(folder, "checkpoint.safetensors", "metrics.jsonl")),
    (PRUNED, lambda folder: _any(folder, "plan.json")),
    (SENSITIVITY, lambda folder: _any(folder, "sensitivity.json")),
    (SCORES, lambda folder: _any(folder, "scores.json")),
)


def held_by(folder: Path) -> str | None:
    """What secateur wrote into a folder, in words; None if it wrote nothing there."""
    return next((what for what, there in _SIGNS if there(folder)), None)


def refuse_others(folder: Path, what: str, *writes: str, beside: tuple[str, ...] = ()) -> None:
    """RunError if a folder belongs to something other than `what`.

    writes: files that `what` would write there. If one exists in a folder that secateur does not know, it is somebody
        else's. beside: other things that it may share a folder with.
    """
    if folder.is_file():
        raise RunError(f"{folder} is a file; name a folder for {what}")
    found = held_by(folder)
    if found in (what, *beside):
        return
    if found is not None:
        raise RunError(f"{folder} holds {found}, and {what} would overwrite or mix up its files; use another folder")
    taken = [name for name in writes if (folder / name).exists()]
    if taken:
        raise RunError(f"{folder} holds {taken[0]}, which is not that of {what}; use another folder")


def refuse_overwriting(file: Path) -> None:
    """RunError if a file exists and belongs to a run, a study or a pruned network."""
    found = held_by(file.parent)
    if found is not None and file.exists():
        raise RunError(f"{file} belongs to {found}; write to another file")


def _any(folder: Path, *names: str) -> bool:
    return any((folder / name).is_file() for name in names)


def _config(folder: Path) -> dict[str, object]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
