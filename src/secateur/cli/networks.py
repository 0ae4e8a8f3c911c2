"""Networks from the command line without a data set, and those of the studies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.cli.model_argument import ModelArgument, resolve
from secateur.cli.options import DeviceOptions
from secateur.errors import ModelError
from secateur.zoo.checks import is_own_data

if TYPE_CHECKING:
    from torch import nn

    from secateur.channels.plan import Plan
    from secateur.cli.options import AnyData


@dataclass(frozen=True)
class Network:
    """A network and what is known about it."""

    name: str
    model: nn.Module
    shape: tuple[Any, ...]  # channels, height, width of an image; of several inputs, the shape of each
    plan: Plan | None = None
    original: nn.Module | None = None  # the unpruned network with initial weights
    inputs: Any = None  # of a network that takes no single image: what it takes, as zeros

    def zeros(self, size: int | None = None) -> Any:
        """One image of zeros, of this height and width if they are given; or several inputs of zeros."""
        import torch

        channels, *sides = self.shape
        if self.inputs is None:
            return torch.zeros(1, channels, *(sides if size is None else (size, size)))
        if size is not None:
            raise ModelError(f"{self.name} takes several inputs, so --size has no meaning: leave it out")
        return self.inputs

    def example(self) -> Any:
        """One image of noise, or several inputs of noise."""
        import torch
        from torch.utils._pytree import tree_map

        draw = torch.Generator().manual_seed(0)

        def noise(x: Any) -> Any:
            known = isinstance(x, torch.Tensor) and x.is_floating_point()
            return torch.randn(x.shape, generator=draw, dtype=x.dtype) if known else x

        return torch.randn(1, *self.shape, generator=draw) if self.inputs is None else tree_map(noise, self.inputs)


def open_network(typed: str, *, model: str | None = None, classes: int | None = None) -> Network:
    """The network that `typed` names (see `resolve`), without a data set.

    model, classes: name and number of classes of the original network, if the folder does not record them.
    """
    found = resolve(typed, model)
    return _pruned(found, classes) if found.folders else _by_name(found, classes)


def open_onnx(typed: str) -> Network:
    """The network in an ONNX file."""
    from secateur.measuring.onnx_file import OnnxFile

    file = OnnxFile(typed)
    return Network(Path(typed).stem, file, file.shape)


def check_trained(models: list[str], weights: Path | None) -> None:
    """ModelError for a network without weights, unless its own factory may load some."""
    for text in models:
        if (weights is None or len(models) > 1) and not resolve(text).has_weights:
            raise ModelError(f"a study needs trained networks: give the weight file of {text} as {text}=FILE")


def trained_networks(
    models: list[str], weights: Path | None, found: AnyData, device: DeviceOptions, seed: int
) -> dict[str, nn.Module]:
    """The trained networks by name, on the device. `models` are typed as in every verb (see `resolve`)."""
    from secateur.cli.opening import open_model

    check_trained(models, weights)
    home = device.pick()
    networks: dict[str, nn.Module] = {}
    for text in models:
        named = resolve(text)
        label = named.label
        if label in networks:
            label = f"{label} ({named.weights.stem if named.weights else len(networks) + 1})"
        networks[label] = open_model(text, found, weights if len(models) == 1 else None, seed=seed).to(home)
    return networks


def _by_name(found: ModelArgument, classes: int | None) -> Network:
    from secateur.cli.opening import check_runs
    from secateur.zoo.models import config, create, example, load_weights

    count = classes or _classes(found)
    network = create(found.name, **({} if count is None else {"num_classes": count}))
    if found.weights is not None:
        load_weights(network, found.weights)
    check_runs(network, found.label, example(found.name))
    return Network(found.label, network, config(found.name).shape)


def _pruned(found: ModelArgument, classes: int | None) -> Network:
    import torch
    from torch.utils._pytree import tree_leaves

    from secateur.channels.files import example_of, load
    from secateur.channels.plan import Plan
    from secateur.cli.opening import channels_argument
    from secateur.zoo.models import config, create

    folder = found.folders[-1]
    plan = Plan.load(folder / "plan.json")
    one = isinstance(plan.example, dict) and set(plan.example) == {"shape", "dtype"}
    shape: tuple[Any, ...] = tuple(plan.example["shape"][1:]) if one else ()
    arguments: dict[str, Any] = {}
    count = classes or _classes(found)
    if count is not None:
        arguments["num_classes"] = count
    if len(shape) == 3 and shape[0] != config(found.name).shape[0] and not is_own_data(str(found.asked.get("data"))):
        arguments[channels_argument(found.name)] = shape[0]
    original = create(found.name, **arguments)
    for earlier in found.folders[:-1]:
        original = load(earlier, original)
    network, inputs = load(folder, original), None
    if not one:
        inputs = example_of(plan, original, folder / "plan.json")
        shape = tuple(tuple(x.shape[1:]) for x in tree_leaves(inputs) if isinstance(x, torch.Tensor))
    return Network(found.label, network, shape, plan, original, inputs)


def _classes(found: ModelArgument) -> int | None:
    from secateur.zoo.data_sets import num_classes

    return num_classes(str(found.asked.get("data", "")))
