"""Checks of what a user names: networks, data sets, weight files. They need no torch, so that errors come at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from prunus.errors import DataError, FileError, ModelError
from prunus.util.registry import unknown
from prunus.util.user_code import names_own_code

# The data sets that can be named. Nothing here imports torch, so that `--help` is quick.


@dataclass(frozen=True)
class DataSet:
    """A name and what is known about it without opening the data set."""

    name: str
    about: str
    source: str  # where to get it
    num_classes: int | None = None
    needs_path: bool = False  # the name is followed by the path of its images, as in folder:PATH

    @property
    def typed(self) -> str:
        """The name as the user types it."""
        return f"{self.name}:PATH" if self.needs_path else self.name


DATA_SETS = {
    known.name: known
    for known in (
        DataSet("digits", "1,797 grey 8x8 images, 10 classes", "part of scikit-learn", 10),
        DataSet("mnist", "70,000 grey 28x28 images, 10 classes", "prunus data get mnist", 10),
        DataSet("cifar10", "60,000 RGB 32x32 images, 10 classes", "prunus data get cifar10", 10),
        DataSet("cifar100", "60,000 RGB 32x32 images, 100 classes", "prunus data get cifar100", 100),
        DataSet("imagenet", "ILSVRC-2012, 1000 classes", "your own copy", 1000, needs_path=True),
        DataSet("folder", "your own images, one folder per class", "your own files", needs_path=True),
    )
}
NAMES = tuple(known.typed for known in DATA_SETS.values())


def num_classes(spec: str) -> int | None:
    """Number of classes of a data set as it is typed (`cifar10`, `imagenet:PATH`); None if it is not known."""
    known = DATA_SETS.get(spec.partition(":")[0])
    return None if known is None else known.num_classes


# What the built-in networks are and cost, from a stored table: `prunus models` need not import torch.


@dataclass(frozen=True)
class KnownModel:
    """A network with its default input and classes. `weights` leaves out biases and batch norm."""

    shape: tuple[int, ...]
    classes: int
    macs: int
    weights: int
    parameters: int
    about: str


@cache
def known_models() -> dict[str, KnownModel]:
    """name -> what is known, in the order of `prunus models`."""
    table = json.loads(Path(__file__).with_name("model_table.json").read_text(encoding="utf-8"))
    return {name: KnownModel(**{**words, "shape": tuple(words["shape"])}) for name, words in table.items()}


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


# Which images are held out for decisions, as it is typed. Nothing here imports torch.


@dataclass(frozen=True)
class Holdout:
    """Which images are held out for decisions: a `share` of the training or test images, or none."""

    source: Literal["train", "test", "none"]
    share: float = 0.0


def parse_holdout(text: str) -> Holdout:
    """`train:0.1`, `test:0.5` or `none`."""
    if text == "none":
        return Holdout("none")
    found = re.fullmatch(r"(train|test):(0?\.\d+)", text)
    share = float(found.group(2)) if found else 0.0
    if found is None or share == 0.0:
        raise DataError(
            f"holdout must be train:SHARE, test:SHARE (0 < SHARE < 1, as in test:0.5) or none, got {text!r}"
        )
    return Holdout("train" if found.group(1) == "train" else "test", share)
