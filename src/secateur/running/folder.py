"""A run's folder: everything that a run knows, written whole or not at all, so that it can go on after any kill.

    config.json                     what was asked
    base.json                       the network before: accuracy, MACs, parameters
    round-01/scores.{json,safetensors}, sensitivity.json, plan.json, round.json, model.safetensors
    model.safetensors, plan.json    the result, readable by secateur.load
    summary.json                    the result in numbers

plan.json always speaks the numbering of the original network. A round is finished when its round.json is there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import nn

from secateur.channels.files import MODEL_FILE, PLAN_FILE, load, save
from secateur.channels.plan import Plan
from secateur.errors import FileError, RunError
from secateur.training.files import write_atomically

CONFIG, BASE, ROUND, SENSITIVITY, SUMMARY = "config.json", "base.json", "round.json", "sensitivity.json", "summary.json"


class RunFolder:
    """Reads and writes the files of one run. Processes other than the first only read."""

    def __init__(self, path: str | Path, *, writes: bool = True) -> None:
        self.path = Path(path)
        self.writes = writes

    def start(self, config: dict[str, Any]) -> None:
        """Begin a run here, or go on with the same one; another run's folder is not touched."""
        path = self.path / CONFIG
        if path.exists():
            found = self.read(CONFIG)
            different = [key for key in {**found, **config} if found.get(key) != _plain(config.get(key))]
            if different:
                key = sorted(different)[0]
                raise RunError(
                    f"{self.path} holds a run with {key}={found.get(key)!r}, this one has {key}={config.get(key)!r}. "
                    "Use another folder, or the same settings to go on with that run."
                )
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(f"{self.path} is not empty and holds no run ({CONFIG} is missing); use a new folder")
        else:
            self.write(CONFIG, config)

    def round(self, number: int) -> Path:
        """The folder of a round, counted from 1."""
        return self.path / f"round-{number:02d}"

    def finished_rounds(self) -> int:
        """How many rounds are finished, one after the other from the first."""
        number = 0
        while (self.round(number + 1) / ROUND).exists():
            number += 1
        return number

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run."""
        path = self.path / name
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise FileError(f"{path} is missing; the run in {self.path} cannot go on without it") from error
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise FileError(f"{path} should hold a JSON object, and holds {type(found).__name__}")
        return found

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file of the run."""
        if self.writes:
            write_atomically(self.path / name, f"{json.dumps(_plain(content), indent=2)}\n".encode())

    def has(self, name: str) -> bool:
        """Whether a file of the run is there."""
        return (self.path / name).exists()

    def save_model(self, model: nn.Module, plan: Plan, number: int | None = None) -> None:
        """Write a round's network (or, without a number, the result)."""
        if self.writes:
            save(model, plan, self.path if number is None else self.round(number))

    def load_model(self, original: nn.Module, number: int) -> tuple[nn.Module, Plan]:
        """The network and plan that a finished round left."""
        folder = self.round(number)
        for name in (PLAN_FILE, MODEL_FILE):
            if not (folder / name).exists():
                raise FileError(
                    f"{folder / name} is missing, though round {number} is finished. Put it back, or delete {folder} "
                    "and the rounds after it: the run then goes on from the round before."
                )
        return load(folder, original), Plan.load(folder / PLAN_FILE)

    def forget(self, folder: Path) -> None:
        """Remove a folder of intermediate files."""
        if self.writes:
            shutil.rmtree(folder, ignore_errors=True)


def _plain(value: Any) -> Any:
    """Tuples as lists, keys as text: what JSON gives back."""
    return json.loads(json.dumps(value, default=str))
