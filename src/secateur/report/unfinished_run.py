"""What is known of a run that has not finished: its settings, the rounds so far, and the epochs of the one at work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.errors import FileError
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.running.folder import BASE, CONFIG, PROGRESS, ROUND, RunFolder
from secateur.running.rounds import Outcome
from secateur.training.history import METRICS_FILE, Epoch, from_dict


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that is at work, or was interrupted."""

    folder: Path
    config: Mapping[str, Any]
    base: Accuracy | None  # held-out; None until it was measured
    macs: int | None  # of the original network; None for older runs
    quality: QualityWords
    rounds: tuple[Outcome, ...]
    epochs: tuple[Epoch, ...]  # of the round at work
    doing: Mapping[str, Any] | None = None  # phase, steps and time of its last sign of life; None if there is none

    @property
    def command(self) -> Mapping[str, Any]:
        """Options of the command line; empty if the library was called."""
        return self.config.get("command") or {}


def read_unfinished(folder: Path) -> UnfinishedRun:
    """What the folder of a run holds so far. FileError if it holds no run."""
    files = RunFolder(folder, writes=False)
    if not folder.is_dir() or not files.has(CONFIG):
        raise FileError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    base: dict[str, Any] = files.read(BASE) if files.has(BASE) else {}
    done = files.finished_rounds()
    rounds = [files.parse(f"{files.round(n).name}/{ROUND}", Outcome.from_dict) for n in range(1, done + 1)]
    return UnfinishedRun(
        folder,
        files.read(CONFIG),
        None if not base else files.parse(BASE, lambda words: Accuracy(**words["holdout"])),
        base.get("macs"),
        QualityWords(**base["quality"]) if "quality" in base else ACCURACY,
        tuple(rounds),
        _epochs(files.round(done + 1) / "checkpoint" / METRICS_FILE),
        files.read(PROGRESS) if files.has(PROGRESS) else None,
    )


def _epochs(path: Path) -> tuple[Epoch, ...]:
    """The epochs in a training's journal; none if it is not there (yet, or any more)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(from_dict(json.loads(line)) for line in lines)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
