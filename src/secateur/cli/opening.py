"""Models and data sets from the options of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.base.user_code import failure
from secateur.cli.common import complain
from secateur.cli.model_argument import ModelArgument, resolve
from secateur.errors import DataError, ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from secateur.channels.graph import ChannelGraph
    from secateur.cli.options import AnyData
    from secateur.zoo.data import Part


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """'0.485,0.456,0.406' as numbers; None stays None."""
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError as error:
        raise DataError(f"{option} must be numbers separated by commas, got {text!r}") from error


def checked_part(part: str) -> Part:
    """`part` as train, holdout or test; anything else is a DataError."""
    if part not in ("train", "holdout", "test"):
        raise DataError(f"--part must be train, holdout or test; got {part!r}")
    return part  # type: ignore[return-value]


def open_model(typed: str, data: AnyData, weights: Path | None = None, *, seed: int = 0) -> nn.Module:
    """The network that `typed` names (see `resolve`), for the data's classes and channels as far as they are known.

    Its weights are its own, or from a file, or drawn with `seed`.
    """
    from secateur.base.preserve_state import generators_kept
    from secateur.channels.files import load
    from secateur.zoo.models import create, load_weights

    found = resolve(typed)
    refuse_other_weights(found, weights)
    name, weights = found.name, weights or found.weights
    with generators_kept(seed):
        model = create(name, **_factory_arguments(name, data))
    if weights is not None:
        load_weights(model, weights)
    for folder in found.folders:
        model = load(folder, model)
    check_runs(model, typed, data.example())
    return model


def open_graph(
    typed: str, data: AnyData, weights: Path | None = None, *, seed: int, device: torch.device, streams: str
) -> ChannelGraph:
    """The network as `open_model` opens it, on a device and traced."""
    from secateur.base.batches import labels_to
    from secateur.channels.graph import trace

    network = open_model(typed, data, weights, seed=seed).to(device)
    return trace(network, labels_to(data.example(), device), streams)  # type: ignore[arg-type]


def _factory_arguments(name: str, data: AnyData) -> dict[str, int]:
    """The number of classes, and of channels if it is not the network's own; nothing if the data do not say."""
    from secateur.cli.own_data import OwnData
    from secateur.zoo.models import config

    if isinstance(data, OwnData):
        return {}
    channels = {} if config(name).shape[0] == data.shape[0] else {channels_argument(name): data.shape[0]}
    return {"num_classes": len(data.classes), **channels}


def refuse_other_weights(found: ModelArgument, weights: Path | None) -> None:
    """ModelError for --weights with a network that has its own."""
    if weights is not None and (found.weights is not None or found.folders):
        raise ModelError(f"{found.typed} has its own weights: leave out --weights {weights}")


def check_runs(model: nn.Module, name: str, example: Any) -> None:
    """ModelError if a network does not run on an input: an image [1, C, H, W], or several inputs."""
    import torch

    from secateur.base.batches import call
    from secateur.base.preserve_state import evaluating, generators_kept

    with evaluating(model), generators_kept(), torch.no_grad():
        try:
            call(model, example)
        except Exception as error:  # the network's own code may raise anything
            one = isinstance(example, torch.Tensor)
            size = " x ".join(map(str, example.shape[1:])) if one else ""
            what = f"an image of {size}" if one else f"the {len(example)} inputs of the data"
            unsaid = resolve(name).is_own and "shape" not in _declared(resolve(name))
            advice = ". What it takes can be said: factory.shape = (channels, height, width)" if unsaid else ""
            raise ModelError(f"{name} does not run on {what}: {failure(error)}{advice}") from error


def note_untrained(typed: str, weights: Path | None) -> None:
    """Tell the user if the network has its initial weights."""
    if weights is None and not resolve(typed).has_weights:
        complain("note", "no --weights were given, so the network is untrained")


def input_size(model: str) -> int | None:
    """Height and width of the images that the model takes; None if the user's own factory does not say."""
    from secateur.zoo.models import config

    found = resolve(model)
    return config(found.name).shape[-1] if not found.is_own or "shape" in _declared(found) else None


def normalisation(model: str, mean: str | None, std: str | None) -> tuple[str | None, str | None]:
    """Mean and standard deviation as typed, or else those that the user's own factory declares as its attributes."""
    from secateur.zoo.models import config

    found = resolve(model)
    said = _declared(found)
    if mean is None and "mean" in said:
        mean = ",".join(map(str, config(found.name).mean))
    if std is None and "std" in said:
        std = ",".join(map(str, config(found.name).std))
    return mean, std


def _declared(found: ModelArgument) -> set[str]:
    from secateur.zoo.models import config

    return set(config(found.name).declared) if found.is_own else set()


def channels_argument(model: str) -> str:
    """The keyword by which a factory takes the number of image channels."""
    return "in_chans" if model.startswith("timm:") else "in_channels"
