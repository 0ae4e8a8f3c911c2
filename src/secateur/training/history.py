"""The history of a training run epoch by epoch: as JSON lines, and in TensorBoard if that is installed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.base.atomic_files import write_atomically
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.quality_words import ACCURACY, QualityWords

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean loss and quality over its training batches during training, and the held-out quality."""

    number: int  # from 1
    lr: float  # of the last step
    loss: float
    accuracy: float | None  # or another quality that is a mean over images; None for any other
    holdout: Accuracy | None
    seconds: float  # without the held-out evaluation
    images_per_second: float


def to_dict(epoch: Epoch) -> dict[str, Any]:
    """The epoch as JSON."""
    return dataclasses.asdict(epoch)


def from_dict(words: dict[str, Any]) -> Epoch:
    """The epoch that `to_dict` wrote."""
    holdout = words["holdout"]
    return Epoch(**{**words, "holdout": None if holdout is None else Accuracy(**holdout)})


class Journal:
    """Writes the history to `folder`/metrics.jsonl, and to TensorBoard's event files if it can be imported."""

    def __init__(self, folder: Path | None, history: Sequence[Epoch] = (), quality: QualityWords = ACCURACY) -> None:
        self._folder, self._quality = folder, quality
        self._board = None if folder is None else _tensorboard(folder, len(history))
        if history:
            self._write_lines(history)  # the run may have been killed between the checkpoint and this file

    def write(self, history: Sequence[Epoch]) -> None:
        """Write all epochs so far. The file is small, and rewriting it keeps it correct after a kill."""
        self._write_lines(history)
        if self._board is not None:
            _show(self._board, history[-1], self._quality)

    def _write_lines(self, history: Sequence[Epoch]) -> None:
        if self._folder is not None:
            lines = [json.dumps(_finite(to_dict(epoch)), allow_nan=False) for epoch in history]
            write_atomically(self._folder / METRICS_FILE, "".join(f"{line}\n" for line in lines).encode())

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, epochs_done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    # purge_step: a killed run may have written epochs after its last checkpoint
    return SummaryWriter(str(folder), purge_step=epochs_done + 1)


def _show(board: Any, epoch: Epoch, quality: QualityWords) -> None:
    board.add_scalar("train/loss", epoch.loss, epoch.number)
    if epoch.accuracy is not None:
        board.add_scalar(f"train/{quality.name}", epoch.accuracy, epoch.number)
    board.add_scalar("train/lr", epoch.lr, epoch.number)
    if epoch.holdout is not None:
        name = "top1" if quality == ACCURACY else quality.name
        board.add_scalar(f"holdout/{name}", epoch.holdout.top1, epoch.number)
        board.add_scalar("holdout/loss", epoch.holdout.loss, epoch.number)


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
