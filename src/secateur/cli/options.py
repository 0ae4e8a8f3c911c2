"""Options that several verbs share.

Options that belong together are a dataclass (`DataOptions`, `DeviceOptions`), which `options_from_settings` turns into
command line options; a single option is a type alias. Importing this module does not import torch.
"""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateur.base.options import check, option
from secateur.cli import early_checks
from secateur.cli.early_checks import Early, choice
from secateur.cli.opening import numbers
from secateur.errors import DataError
from secateur.zoo.checks import check_data_set
from secateur.zoo.data_sets import NAMES
from secateur.zoo.holdout import parse_holdout

if TYPE_CHECKING:
    import torch

    from secateur.zoo.data import ImageData

DATA_HELP = f"Data set: {', '.join(NAMES[:-1])} or {NAMES[-1]}"
HOLDOUT_HELP = "Held-out images: train:SHARE, test:SHARE or none"


def _mean(text: str) -> None:
    numbers(text, "--mean")


def _std(text: str) -> None:
    numbers(text, "--std")


@dataclass(frozen=True)
class DataOptions:
    """The data set: its name, where it is, and how its images are prepared and divided."""

    data: str = option("digits", DATA_HELP, group="Data", valid=check_data_set)
    holdout: str = option("train:0.1", HOLDOUT_HELP, group="Data", valid=parse_holdout)
    data_root: Path | None = option(None, "Folder that holds the data set", group="Data")
    mean: str | None = option(None, "Mean to subtract, as in 0.485,0.456,0.406", group="Data", valid=_mean)
    std: str | None = option(None, "Standard deviation to divide by", group="Data", valid=_std)
    size: int | None = option(None, "Height and width of the images in pixels", group="Data", least=1)
    workers: int = option(0, "Number of processes that decode image files", group="Data", least=0)

    def open(self, model: str, seed: int = 0) -> ImageData:
        """The data set, with the size, mean and standard deviation that the model names unless others are given."""
        from secateur.cli.opening import input_size, normalisation

        size = input_size(model) if self.size is None else self.size
        mean, std = normalisation(model, self.mean, self.std)
        return replace(self, mean=mean, std=std).load(size, seed)

    def load(self, size: int | None = None, seed: int = 0) -> ImageData:
        """The data set with images of this size (None: their own). `seed` chooses the held-out images."""
        from secateur.zoo.data import load

        check(self, DataError)
        return load(
            self.data,
            self.data_root,
            mean=numbers(self.mean, "--mean"),
            std=numbers(self.std, "--std"),
            size=size,
            holdout=self.holdout,
            workers=self.workers,
            seed=seed,
        )


@dataclass(frozen=True)
class EverydayData(DataOptions):
    """A data set whose name is listed among the everyday options, for verbs with many options."""

    data: str = option("digits", DATA_HELP, group="Data", everyday=True, valid=check_data_set)


@dataclass(frozen=True)
class RequiredData(DataOptions):
    """A data set that the user must name."""

    data: str = option(MISSING, DATA_HELP, group="Data", valid=check_data_set)


@dataclass(frozen=True)
class UndividedData(DataOptions):
    """A data set without held-out images, unless the user asks for them."""

    holdout: str = option("none", HOLDOUT_HELP, group="Data", valid=parse_holdout)


@dataclass(frozen=True)
class DeviceOptions:
    """The device that computes."""

    device: str | None = option(None, "cpu, cuda, cuda:1, ...; the best available by default", group="Data")

    def pick(self) -> torch.device:
        """The device asked for, or the best available. Each process that torchrun started gets its own."""
        from secateur.base.processes import best_device, usable

        found = usable(self.device) if self.device else best_device()
        if found.type != "cpu" and ":" not in str(self.device) and "LOCAL_RANK" in os.environ:
            return usable(f"{found.type}:{os.environ['LOCAL_RANK']}")
        return found


Classes = Annotated[int | None, typer.Option(help="Number of classes, if it is not the model's default", min=1)]
DataRoot = Annotated[Path | None, typer.Option(help="Folder that holds the data set")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the best available by default")]
Model = Annotated[
    str,
    typer.Argument(help="Built-in name, torchvision:NAME, timm:NAME, package.module:factory"),
    Early(early_checks.network),
]
Size = Annotated[int | None, typer.Option(help="Height and width of the images in pixels", min=1)]
Streams = Annotated[
    str,
    typer.Option(help="Residual channels: each reader selects its own (select), or all drop them together (coupled)"),
    choice("streams", "select", "coupled"),
]
Part = Annotated[
    str, typer.Option(help="Images to read: train, holdout or test"), choice("part", "train", "holdout", "test")
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Weight file (.safetensors, .pt, .pth, .th)"),
    Early(early_checks.weights),
]
