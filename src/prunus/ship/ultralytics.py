"""A pruned YOLO back in ultralytics: train, validate, predict and export it there as before.

    yolo = prunus.ultralytics.yolo("runs/prune-yolov8n")       # an ultralytics.YOLO with the pruned network
    yolo.train(data="data.yaml", epochs=30)                    # the pruned network is trained, not a new one
    yolo.val(data="data.yaml"); yolo.predict("photo.jpg"); yolo.export(format="onnx")

ultralytics is an optional package under the AGPL; it is imported when a function of this module is called. Tried with
8.4.190.
"""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from prunus.errors import FileError, ModelError
from prunus.graph.files import load
from prunus.graph.selection import selection_of
from prunus.util.files import read_object
from prunus.zoo.models import create

Run = str | Path | nn.Module
PREFIX = "yolo:"


def network(run: Run) -> nn.Module:
    """The pruned network: an ultralytics DetectionModel with its strides, and the names of its classes.

    Args:
        run: The folder of a run of `prunus prune yolo:...`; or the pruned network itself, such as `result.model`.
    """
    model = copy.deepcopy(run) if isinstance(run, nn.Module) else _from_folder(Path(run))
    if not hasattr(model, "yaml") or not hasattr(model, "stride"):
        raise ModelError(f"expected a network of ultralytics, got {type(model).__name__}")
    selecting = [name for name, module in model.named_modules() if selection_of(module) is not None]
    if selecting:
        raise ModelError(
            f"{len(selecting)} layers select channels of residual streams, {selecting[0]} among them, and ultralytics "
            'would lose that when it fuses layers: prune with streams="coupled" (--streams coupled)'
        )
    for module in model.modules():
        if hasattr(module, "forward_split"):  # what it exports instead of forward takes the width from an attribute
            module.c = module.cv1.conv.out_channels // 2  # type: ignore[union-attr, assignment, operator]
    model.model[-1].dynamic = False  # type: ignore[index, union-attr]  # as ultralytics has it
    return model


def _from_folder(folder: Path) -> nn.Module:
    config = read_object(folder / "config.json", f"; {folder} holds no finished run")
    command = config.get("command") or {}
    name = (config.get("start") or {}).get("network") or command.get("model")
    if not isinstance(name, str) or not name.startswith(PREFIX):
        raise FileError(
            f"{folder} is no run of `prunus prune {PREFIX}...`: it starts from {name!r}. Load the network yourself, "
            "and pass it: prunus.ultralytics.yolo(prunus.load(folder, original))"
        )
    model = load(folder, create(name.partition("=")[0], **(config.get("built") or {})))
    classes = folder / "classes.json"
    names = read_object(classes).get("names") if classes.exists() else None
    if names:
        model.names = dict(enumerate(names))  # type: ignore[assignment]
    return model.eval()


def trainer(run: Run) -> Any:
    """A trainer for `YOLO(...).train(trainer=prunus.ultralytics.trainer(run), ...)` that trains the pruned network.

    Everything else is as ultralytics does it: data, losses, schedule, validation, checkpoints. An interrupted training
    goes on with the network of its checkpoint.
    """
    pruned = network(run)
    detect = import_module("ultralytics.models.yolo.detect.train")

    class PrunedTrainer(detect.DetectionTrainer):  # type: ignore[misc, name-defined]
        """Trains a given network instead of building one from its configuration."""

        def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> nn.Module:
            """The pruned network with its weights; those of a checkpoint if one is resumed."""
            resumed = weights if self.resume and isinstance(weights, nn.Module) else pruned
            classes = int(self.data["nc"])
            own = int(resumed.model[-1].nc)  # type: ignore[index, union-attr]
            if classes != own:
                raise ModelError(f"the network is for {own} classes, and {self.args.data} has {classes}")
            return copy.deepcopy(resumed).float().requires_grad_(True)

    return PrunedTrainer


def yolo(run: Run) -> Any:
    """An `ultralytics.YOLO` with the pruned network: `train`, `val`, `predict` and `export` are ultralytics' own.

    Args:
        run: As for `network`.
    """
    model = network(run)
    given, of_pruned = import_module("ultralytics").YOLO, trainer  # an argument below has its name

    class PrunedYOLO(given):  # type: ignore[misc, valid-type]
        """A YOLO whose training starts from its own, pruned network."""

        def train(self, trainer: Any = None, **arguments: Any) -> Any:
            """As ultralytics' own; a trainer for the pruned network is used by default."""
            if not isinstance(self.model, nn.Module):
                raise ModelError(f"an exported network cannot be trained, and this is {type(self.model).__name__}")
            return super().train(trainer=trainer or of_pruned(self.model), **arguments)

    described = PrunedYOLO(str(model.yaml["yaml_file"]), task="detect")  # type: ignore[index]
    model.args, model.task = described.model.args, described.task
    described.model = model
    return described
