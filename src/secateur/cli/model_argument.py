"""The MODEL argument of every verb: a name, NAME=WEIGHTS, or the folder of a run or a pruned network.

This is the one place that resolves it. Nothing here imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secateur.base.folder_contents import PRUNING, TRAINING, held_by
from secateur.errors import FileError, ModelError

MODEL_HELP = "Built-in name, torchvision:NAME, timm:NAME, package.module:factory, NAME=WEIGHTS, or a run's folder"


@dataclass(frozen=True)
class ModelArgument:
    """What the user named."""

    typed: str
    name: str  # of the network that everything starts from, in the zoo or the user's own
    weights: Path | None = None
    folders: tuple[Path, ...] = ()  # pruned networks: the first was cut from `name`, each other from the one before
    asked: Mapping[str, Any] = field(default_factory=dict)  # the options of the run, by name

    @property
    def is_own(self) -> bool:
        """Whether the user's own factory, package.module:factory, builds the network."""
        return is_own(self.name)

    @property
    def has_weights(self) -> bool:
        """Whether the network comes with weights. A factory of the user's own may load some, so it counts."""
        return self.weights is not None or bool(self.folders) or self.is_own

    @property
    def label(self) -> str:
        """A short name for titles and new folders."""
        return Path(self.typed).resolve().name if Path(self.typed).is_dir() else self.name


def is_own(name: str) -> bool:
    """Whether a name is that of the user's own factory, package.module:factory."""
    return ":" in name and not name.startswith(("torchvision:", "timm:"))


def resolve(typed: str, model: str | None = None) -> ModelArgument:
    """The network that `typed` names.

    model: the original network of a folder that does not record it.
    """
    folder = Path(typed)
    if folder.is_dir():
        return _from_folder(typed, folder, model)
    name, equals, weights = typed.partition("=")
    if ":" not in name and ("/" in name or name.startswith(".")):
        raise ModelError(f"{typed}: there is no such folder; a network is a folder, a name or NAME=WEIGHTS")
    if equals and not (name and weights):
        raise ModelError(f"{typed}: expected NAME=WEIGHTS, as in resnet56=resnet56.safetensors")
    return ModelArgument(typed, name, Path(weights) if equals else None)


def _from_folder(typed: str, folder: Path, model: str | None) -> ModelArgument:
    held = held_by(folder)
    if held == TRAINING and (folder / "summary.json").exists():
        summary = _recorded(folder / "summary.json")
        return ModelArgument(
            typed, model or summary["model"], folder / "model.safetensors", asked=summary.get("command", {})
        )
    if not (folder / "plan.json").exists():
        if held == PRUNING:
            raise FileError(f"the run in {folder} is not finished; to continue it: secateur prune --resume {folder}")
        raise FileError(
            f"{folder} is a folder without plan.json"
            + (f" (it holds {held})" if held else "")
            + "; a pruned network has plan.json and model.safetensors"
        )
    asked = _recorded(folder / "config.json").get("command")
    asked = asked if isinstance(asked, dict) else {}
    name = model or asked.get("model")
    if not isinstance(name, str):
        raise ModelError(f"{folder} does not record its original network: pass --model NAME")
    try:
        start = resolve(name)
    except (FileError, ModelError) as error:
        raise ModelError(f"{folder} was pruned from {name}, which cannot be opened: {error}") from error
    if all(start.asked.get(key) == asked.get(key) for key in ("data", "holdout")):
        asked = {**asked, "seed": start.asked.get("seed", asked.get("seed", 0))}  # it divided the images for both
    return ModelArgument(typed, start.name, folders=(*start.folders, folder), asked=asked)


def _recorded(file: Path) -> dict[str, Any]:
    """An object in a file of a run; empty if there is no such file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FileError(f"{file} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}
