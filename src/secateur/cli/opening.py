"""A model and a data set from what was typed: the same for every verb that takes both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from secateur.errors import DataError

if TYPE_CHECKING:
    from torch import nn

    from secateur.zoo.data import ImageData


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """'0.485,0.456,0.406' as numbers; None stays None."""
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.replace(",", " ").split())
    except ValueError as error:
        raise DataError(f"{option} should be numbers with commas between them, not {text!r}") from error


def open_data(
    spec: str,
    model: str,
    *,
    root: Path | None = None,
    mean: str | None = None,
    std: str | None = None,
    size: int | None = None,
    holdout: str = "train:0.1",
    seed: int = 0,
) -> ImageData:
    """The data set, its images of the size that the model takes unless `size` says otherwise."""
    from secateur.zoo.data import load

    return load(
        spec,
        root,
        mean=numbers(mean, "--mean"),
        std=numbers(std, "--std"),
        size=input_size(model) if size is None else size,
        holdout=holdout,
        seed=seed,
    )


def open_model(name: str, data: ImageData, weights: Path | None = None, *, seed: int = 0) -> nn.Module:
    """The named network for the data's classes and channels, its initial weights drawn from `seed`, or from a file."""
    from secateur.base.preserve_state import generators_kept
    from secateur.zoo.models import config, create, load_weights

    channels = {} if config(name).shape[0] == data.shape[0] else {_channels_argument(name): data.shape[0]}
    with generators_kept(seed):
        model = create(name, num_classes=len(data.classes), **channels)
    if weights is not None:
        load_weights(model, weights)
    return model


def input_size(model: str) -> int | None:
    """Height and width of the images that the model takes; None for the user's own model, which may take any size."""
    from secateur.zoo.models import config

    known = ":" not in model or model.split(":")[0] in ("torchvision", "timm")
    return config(model).shape[-1] if known else None


def _channels_argument(model: str) -> str:
    return "in_chans" if model.startswith("timm:") else "in_channels"
