"""Options that several verbs share.

Options that belong together are a dataclass (`DataOptions`, `DeviceOptions`), which `options_from_settings` turns into
command line options; a single option is a type alias. Importing this module does not import torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from secateur.base.options import check, option
from secateur.cli import early_checks
from secateur.cli.common import complain
from secateur.cli.early_checks import Early, choice
from secateur.cli.from_settings import settings_from
from secateur.cli.model_argument import MODEL_HELP, resolve
from secateur.cli.opening import numbers
from secateur.errors import DataError
from secateur.measuring.tasks import DEFAULT_TASK, TASKS, is_classification, task_of
from secateur.zoo.checks import check_data_set, is_own_data
from secateur.zoo.data_sets import NAMES
from secateur.zoo.holdout import parse_holdout

if TYPE_CHECKING:
    import torch

    from secateur.cli.own_data import OwnData
    from secateur.zoo.data import ImageData, LabelKind

    AnyData = ImageData | OwnData

DEFAULT_DATA = "digits"
DATA_HELP = f"Data set: {', '.join(NAMES)} or your_module:make_data; a run's own, else {DEFAULT_DATA}, by default"
FOLDERS: dict[str, LabelKind] = {DEFAULT_TASK: "classes", "segmentation": "masks", "multilabel": "several"}
HOLDOUT_HELP = "Held-out images: train:SHARE, test:SHARE or none"


def _mean(text: str) -> None:
    numbers(text, "--mean")


def _std(text: str) -> None:
    numbers(text, "--std")


@dataclass(frozen=True)
class DataOptions:
    """The data set: its name, where it is, and how its images are prepared and divided."""

    data: str | None = option(None, DATA_HELP, group="Data", valid=check_data_set)
    holdout: str = option("train:0.1", HOLDOUT_HELP, group="Data", valid=parse_holdout)
    data_root: Path | None = option(None, "Folder that holds the data set", group="Data")
    mean: str | None = option(None, "Mean to subtract, as in 0.485,0.456,0.406", group="Data", valid=_mean)
    std: str | None = option(None, "Standard deviation to divide by", group="Data", valid=_std)
    size: int | None = option(None, "Height and width of the images in pixels", group="Data", least=1)
    workers: int = option(0, "Number of processes that decode image files", group="Data", least=0)

    @property
    def name(self) -> str:
        """The data set as it is typed."""
        return self.data or DEFAULT_DATA

    def known_for(self, model: str) -> Self:
        """These options, where those that were not given are those of the run that `model` names, if it is one."""
        asked = resolve(model).asked
        if "data" not in asked or self.data not in (None, asked["data"]):
            if self.data is not None:
                return self
            if os.environ.get("RANK", "0") == "0":
                complain("note", f"no --data was given, so the data set is {DEFAULT_DATA}")
            return replace(self, data=DEFAULT_DATA)
        before = settings_from(DataOptions, asked)
        names = [each.name for each in fields(DataOptions)]
        taken = [n for n in names if getattr(self, n) == getattr(type(self)(), n)]
        return replace(self, **{n: getattr(before, n) for n in taken})

    def open(self, model: str, seed: int = 0, task: Any = None) -> AnyData:
        """The data set, with the size, mean and standard deviation that the model names unless others are given.

        A run's own data set is divided as it was for the run: what it was trained on is not held out.
        task: what the network is for, which says what the labels are.
        """
        from secateur.cli.opening import input_size, normalisation
        from secateur.cli.own_data import open_own_data

        known, asked = self.known_for(model), resolve(model).asked
        if is_own_data(known.name):
            known._check_nothing_else()
            return open_own_data(known.name, task_of(task))
        same = (asked.get("data"), asked.get("holdout")) == (known.data, known.holdout)
        size = input_size(model) if known.size is None else known.size
        mean, std = normalisation(model, known.mean, known.std)
        return replace(known, mean=mean, std=std).load(size, int(asked.get("seed", seed)) if same else seed, task)

    def _check_nothing_else(self) -> None:
        """DataError for options that loaders of the user's own cannot follow."""
        usual = type(self)()
        given = [
            each.name
            for each in fields(self)
            if each.name != "data" and getattr(self, each.name) != getattr(usual, each.name)
        ]
        if given:
            option = given[0].replace("_", "-")
            raise DataError(f"--{option} does not apply to {self.name}, which prepares and divides its images itself")

    def open_classes(self, model: str, seed: int = 0) -> ImageData:
        """A data set with one class per image; DataError for any other."""
        from secateur.cli.own_data import OwnData

        task = task_of(task_for(model, None))
        found = self.open(model, seed, task)
        if isinstance(found, OwnData) or not is_classification(task):
            raise DataError(f"{found.name}: this needs one class per image, of a data set by name: {', '.join(NAMES)}")
        return found

    def load(self, size: int | None = None, seed: int = 0, task: Any = None) -> ImageData:
        """The data set with images of this size (None: their own). `seed` chooses the held-out images."""
        from secateur.zoo.data import load

        check(self, DataError)
        return load(
            self.name,
            self.data_root,
            mean=numbers(self.mean, "--mean"),
            std=numbers(self.std, "--std"),
            size=size,
            holdout=self.holdout,
            workers=self.workers,
            seed=seed,
            labels=label_kind(task, self.name),
        )


def task_for(model: str, task: Any) -> Any:
    """The task that was given, or else that of the run that `model` names, if it is one."""
    return resolve(model).asked.get("task") if task is None else task


def label_kind(task: Any, data: str) -> LabelKind | None:
    """Which labels a task reads from folders; None for a task of the user's own: what is there."""
    name = task_of(task).name
    if name in FOLDERS:
        return FOLDERS[name]
    if name in TASKS:
        raise DataError(f"{data} holds no labels for {name}: give loaders of your own, --data your_module:make_data")
    return None


@dataclass(frozen=True)
class EverydayData(DataOptions):
    """A data set whose name is listed among the everyday options, for verbs with many options."""

    data: str | None = option(None, DATA_HELP, group="Data", everyday=True, valid=check_data_set)


@dataclass(frozen=True)
class UndividedData(DataOptions):
    """A data set without held-out images, unless the user asks for them."""

    holdout: str = option("none", HOLDOUT_HELP, group="Data", valid=parse_holdout)


@dataclass(frozen=True)
class LayerTimeOptions:
    """How the layers of a network are timed."""

    batch: int = option(64, "Number of images in a batch", least=1)
    threads: int | None = option(
        None, "Number of CPU threads; PyTorch's choice by default", least=1, most=os.cpu_count()
    )


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
Model = Annotated[str, typer.Argument(help=MODEL_HELP), Early(early_checks.network)]
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
