"""The history of a training run epoch by epoch: as JSON lines."""

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
    """Writes the history to `folder`/metrics.jsonl; without a folder it is kept nowhere."""

    def __init__(self, folder: Path | None, history: Sequence[Epoch] = ()) -> None:
        self._folder = folder
        if history:
            self.write(history)  # the run may have been killed between the checkpoint and this file

    def write(self, history: Sequence[Epoch]) -> None:
        """Write all epochs so far. The file is small, and rewriting it keeps it correct after a kill."""
        if self._folder is not None:
            lines = [json.dumps(_finite(to_dict(epoch)), allow_nan=False) for epoch in history]
            write_atomically(self._folder / METRICS_FILE, "".join(f"{line}\n" for line in lines).encode())


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
