"""Checks of what a user names: networks, data sets, weight files. They need no torch, so that errors come at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from secateur.base.own_code import names_own_code
from secateur.base.registry import unknown
from secateur.errors import DataError, FileError, ModelError
from secateur.zoo.data_sets import DATA_SETS, NAMES
from secateur.zoo.model_table import known_models

TORCH_SUFFIXES = (".pt", ".pth", ".th")


def check_model(name: str, known: Iterable[str] | None = None) -> None:
    """ModelError if a name without a colon is not that of a built-in network. Other packages are not asked here."""
    names = list(known_models() if known is None else known)
    if ":" not in name and name not in names:
        other = "torchvision:NAME, timm:NAME and package.module:factory"
        raise ModelError(f"{unknown('model', name, names)}; also {other}")


def is_own_data(spec: str) -> bool:
    """Whether data is named as a function of the user's own, `your.module:make_data`."""
    return spec.partition(":")[0] not in DATA_SETS and names_own_code(spec)


def check_data_set(spec: str) -> None:
    """DataError if there is no such data set, or if its images are not where the user says."""
    name, _, path = spec.partition(":")
    if is_own_data(spec):
        return
    if name not in DATA_SETS or (name == "digits" and path):
        raise DataError(unknown("data set", spec, NAMES))
    if DATA_SETS[name].needs_path and not path:
        raise DataError(f"{name} needs the path of the images: {name}:PATH")
    if path and not Path(path).expanduser().exists():
        raise DataError(f"{path}: this folder of images does not exist")


def check_weight_file(path: str | Path) -> None:
    """FileError if a weight file does not exist, or if its suffix is not that of one."""
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a weight file" if path.is_dir() else "this weight file does not exist"
        raise FileError(f"{path}: {what}")
    if path.suffix not in (".safetensors", *TORCH_SUFFIXES):
        raise FileError(
            f"{path}: expected a weight file .safetensors, {', '.join(TORCH_SUFFIXES)}, got {path.suffix!r}"
        )
