"""Networks from the command line: a name, NAME=WEIGHTS, or the folder of a pruned network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.cli.options import DeviceOptions
from secateur.errors import FileError, ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secateur.channels.plan import Plan
    from secateur.zoo.data import ImageData


@dataclass(frozen=True)
class Network:
    """A network and what is known about it."""

    name: str
    model: nn.Module
    shape: tuple[int, ...]  # channels, height, width of an image
    plan: Plan | None = None
    original: nn.Module | None = None  # the unpruned network with initial weights

    def example(self) -> Tensor:
        """One image of noise."""
        import torch

        return torch.randn(1, *self.shape, generator=torch.Generator().manual_seed(0))


def open_network(typed: str, *, model: str | None = None, classes: int | None = None) -> Network:
    """The network that `typed` names: a folder of `secateur prune` or `secateur.save`, a model's name, or NAME=WEIGHTS.

    model, classes: name and number of classes of the original network, if the folder does not record them.
    """
    if (Path(typed) / "plan.json").exists():
        return _from_folder(Path(typed), model, classes)
    if Path(typed).is_dir():
        raise FileError(f"{typed} is a folder without plan.json; a pruned network has plan.json and model.safetensors")
    name, _, weights = typed.partition("=")
    return _by_name(name, Path(weights) if weights else None, classes)


def check_trained(models: list[str], weights: Path | None) -> None:
    """ModelError for a network without a weight file, unless its own factory may load one."""
    for text in models:
        name, _, own = text.partition("=")
        if not own and (weights is None or len(models) > 1) and not is_own(name):
            raise ModelError(f"a study needs trained networks: give the weight file of {name} as {name}=FILE")


def is_own(name: str) -> bool:
    """Whether a name is that of the user's own factory, package.module:factory."""
    return ":" in name and not name.startswith(("torchvision:", "timm:"))


def trained_networks(
    models: list[str], weights: Path | None, found: ImageData, device: DeviceOptions, seed: int
) -> dict[str, nn.Module]:
    """The trained networks by name, on the device. `models` are NAME or NAME=WEIGHTS."""
    from secateur.cli.opening import open_model

    check_trained(models, weights)
    home = device.pick()
    networks = {}
    for text in models:
        name, _, own = text.partition("=")
        file = Path(own) if own else weights if len(models) == 1 else None
        label = name if name not in networks else f"{name} ({Path(own).stem})"
        networks[label] = open_model(name, found, file, seed=seed).to(home)
    return networks


def _by_name(name: str, weights: Path | None, classes: int | None) -> Network:
    from secateur.zoo.models import config, create, load_weights

    arguments = {} if classes is None else {"num_classes": classes}
    network = create(name, **arguments)
    if weights is not None:
        load_weights(network, weights)
    return Network(name, network, config(name).shape)


def _from_folder(folder: Path, model: str | None, classes: int | None) -> Network:
    from secateur.channels.files import load
    from secateur.channels.plan import Plan
    from secateur.zoo.data_sets import num_classes
    from secateur.zoo.models import config, create

    asked = _asked(folder)
    name = model or asked.get("model")
    if name is None:
        raise ModelError(f"{folder} does not record its original network: pass --model NAME")
    plan = Plan.load(folder / "plan.json")
    shape = tuple(plan.example["shape"][1:]) if isinstance(plan.example, dict) and "shape" in plan.example else ()
    if not shape:
        raise ModelError(f"{folder}: the network has several inputs; use secateur.load and secateur.export in Python")
    arguments: dict[str, Any] = {}
    count = classes or num_classes(str(asked.get("data", "")))
    if count is not None:
        arguments["num_classes"] = count
    if shape[0] != config(name).shape[0]:
        arguments["in_chans" if name.startswith("timm:") else "in_channels"] = shape[0]
    original = create(name, **arguments)
    return Network(folder.name, load(folder, original), shape, plan, original)


def _asked(folder: Path) -> dict[str, Any]:
    """The options of `secateur prune`, if it wrote the folder."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("command")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(f"{folder / 'config.json'} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}
