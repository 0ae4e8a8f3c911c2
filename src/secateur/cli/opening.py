"""Models and data sets from the options of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from secateur.errors import DataError

if TYPE_CHECKING:
    from torch import nn

    from secateur.zoo.data import ImageData, Part


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


def open_model(name: str, data: ImageData, weights: Path | None = None, *, seed: int = 0) -> nn.Module:
    """The named network for the data's classes and channels, with weights from a file or drawn with `seed`."""
    from secateur.base.preserve_state import generators_kept
    from secateur.zoo.models import config, create, load_weights

    channels = {} if config(name).shape[0] == data.shape[0] else {_channels_argument(name): data.shape[0]}
    with generators_kept(seed):
        model = create(name, num_classes=len(data.classes), **channels)
    if weights is not None:
        load_weights(model, weights)
    return model


def input_size(model: str) -> int | None:
    """Height and width of the images that the model takes; None if the user's own factory does not say."""
    from secateur.zoo.models import config

    return config(model).shape[-1] if not _is_own(model) or "shape" in _declared(model) else None


def normalisation(model: str, mean: str | None, std: str | None) -> tuple[str | None, str | None]:
    """Mean and standard deviation as typed, or else those that the user's own factory declares as its attributes."""
    from secateur.zoo.models import config

    said = _declared(model)
    if mean is None and "mean" in said:
        mean = ",".join(map(str, config(model).mean))
    if std is None and "std" in said:
        std = ",".join(map(str, config(model).std))
    return mean, std


def _is_own(model: str) -> bool:
    return ":" in model and model.split(":")[0] not in ("torchvision", "timm")


def _declared(model: str) -> set[str]:
    from secateur.zoo.models import config

    return set(config(model).declared) if _is_own(model) else set()


def _channels_argument(model: str) -> str:
    return "in_chans" if model.startswith("timm:") else "in_channels"
