"""Images by name, as normalised batches.

    data = load("cifar10")                       # or digits, mnist, cifar100, imagenet:PATH, folder:PATH
    for images, labels in data.loader("train", 128, augment=True, shuffle=True): ...

A data set has three disjoint parts: `train` for the weights, `holdout` for decisions, `test` for the final report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from prunus.errors import DataError
from prunus.util.registry import unknown
from prunus.zoo import boxes, folders, formats
from prunus.zoo.images import FileImages, Images, divide, stratified
from prunus.zoo.loader import Batch, Loader, Order
from prunus.zoo.names import DATA_SETS, NAMES, DataSet, Part, check_data_set, parse_holdout

__all__ = ["NAMES", "Batch", "ImageData", "LabelKind", "Loader", "Part", "load", "locate", "roots"]

# Of an image: one class, a class for each pixel, several labels, boxes with classes.
LabelKind = Literal["classes", "masks", "several", "boxes"]


class _FolderKind(NamedTuple):
    """Labels of images in a folder: what is there, its reader, and the task that needs such labels."""

    what: str
    is_there: Callable[[Path], bool]
    read: Callable[[Path, int | None], folders.FolderData]
    task: str


_FOLDERS: dict[LabelKind, _FolderKind] = {
    "masks": _FolderKind(
        "images and masks", lambda path: folders.has_beside(path, folders.MASKS), folders.read_masks, "segmentation"
    ),
    "several": _FolderKind("a CSV of labels", folders.has_table, folders.read_labelled, "multilabel"),
    "boxes": _FolderKind("images with boxes", boxes.has_boxes, boxes.read_boxes, "detection"),
    "classes": _FolderKind("folders of classes", lambda _: True, folders.read_classes, "classification"),
}


@dataclass(frozen=True, eq=False, repr=False)
class ImageData:
    """A data set, divided into its parts."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, int, int]  # channels, height, width
    parts: Mapping[Part, Images]
    mirror: bool
    max_corrupt: int | None
    workers: int = 0  # processes that decode files

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.shape))
        parts = ", ".join(f"{self.count(part):,} {part}" for part in get_args(Part) if part in self.parts)
        classes = f"{len(self.classes):,} classes" if self.classes else "no labels"
        return f"ImageData({self.name}: images of {size}, {classes}; {parts})"

    @property
    def labelled(self) -> bool:
        """Whether the images have labels. If not, batches are (images,)."""
        return bool(self.classes)

    def only(self, numbers: Sequence[int]) -> ImageData:
        """The images of some classes, whose labels are the places of their classes in `numbers`.

        Raises:
            DataError: The images have no single class each, or a part has none of these classes.
        """
        parts: dict[Part, Images] = {}
        places = np.full(len(self.classes), -1, dtype=np.int64)
        places[list(numbers)] = np.arange(len(numbers))
        for name, images in self.parts.items():
            if images.labels.ndim != 1 or not self.classes or (isinstance(images, FileImages) and images.masks):
                raise DataError(f"{self.name}: some classes can be chosen among images that have one class each")
            there = np.flatnonzero(places[images.labels] >= 0)
            if not len(there) and len(images.labels):
                raise DataError(f"{self.name} has no {name} images of these classes")
            taken = images.take(there)
            parts[name] = replace(taken, labels=places[taken.labels])
        return replace(self, classes=tuple(self.classes[number] for number in numbers), parts=parts)

    def class_numbers(self, text: str) -> list[int]:
        """The numbers of classes that are given as `3,17,42`, or by name as `cat,dog`.

        Raises:
            DataError: There is no such class, fewer than two are given, or one is given twice.
        """
        names = {name.lower(): number for number, name in enumerate(self.classes)}
        numbers = []
        for word in (part.strip() for part in text.split(",")):
            number = names.get(word.lower(), int(word) if word.isdecimal() else -1)
            if not 0 <= number < len(self.classes):
                raise DataError(unknown(f"class of {self.name}", word, self.classes))
            numbers.append(number)
        if len({*numbers}) < max(2, len(numbers)):
            raise DataError(f"give two or more different classes, as in 3,17,42 or cat,dog; got {text}")
        return numbers

    def count(self, part: Part) -> int:
        """Number of images in a part; 0 if the part does not exist."""
        return len(self.parts[part].labels) if part in self.parts else 0

    def has(self, part: Part) -> bool:
        """Whether there are images of a part."""
        return self.count(part) > 0

    def example(self) -> Tensor:
        """An input of a network: zeros [1, C, H, W]."""
        return torch.zeros(1, *self.shape)

    def loader(
        self,
        part: Part,
        batch_size: int = 128,
        *,
        augment: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        limit: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> Loader:
        """Batches of one part.

        Args:
            part: train, holdout or test.
            batch_size: Number of images in a batch of this process.
            augment: Pad, crop and mirror (images in memory), random resized crop and mirror (files).
            shuffle: A new order in each epoch.
            seed: Of the order, the augmentation and the sample.
            limit: Largest number of images; a stratified sample.
            rank: Number of this process, which gets its own images.
            world: Number of all processes.
        """
        if part not in self.parts:
            has = ", ".join(f"{name} ({self.count(name)})" for name in self.parts) or "nothing"
            advice = ". Hold some out: --holdout train:0.1" if part == "holdout" else ""
            raise DataError(f"{self.name} has no {part} images; it has {has}{advice}")
        images = self.parts[part]
        if limit is not None and limit < len(images.labels):
            if limit < 1:
                raise DataError(f"limit must be at least 1, got {limit}")
            images = images.take(stratified(images.strata, limit, seed))
        order = Order(len(images.labels), batch_size, shuffle, seed, rank, world)
        files = self.shape[1], self.workers, self.max_corrupt
        return Loader(images, order, self.classes, self.mean, self.std, augment, self.mirror, *files)


def load(
    spec: str,
    root: str | Path | None = None,
    *,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    size: int | None = None,
    holdout: str = "train:0.1",
    seed: int = 0,
    workers: int = 0,
    max_corrupt: int | None = None,
    labels: LabelKind | None = "classes",
) -> ImageData:
    """Open a data set by name.

    Args:
        spec: One of NAMES; `mnist:PATH`, `cifar10:PATH` and `cifar100:PATH` give the folder to look in, like `root`.
        root: The folder to look in, instead of those of `roots()`.
        mean: Of pixels in [0, 1], one number or one per channel; the data set's own by default.
        std: Likewise.
        size: Height and width in pixels; images in memory are resized, files are cropped.
        holdout: `train:SHARE`, `test:SHARE` (decide on a share of the test images, report on the others) or `none`.
        seed: Chooses the held-out images.
        workers: Number of processes that decode image files; images in memory need none.
        max_corrupt: Largest number of files that may fail to decode in an epoch; by default 20, and at most one in 20.
        labels: Of `folder:PATH`: folders of classes, masks, several labels from a CSV, or boxes; None takes what is
            there. A folder of images alone has none; with "boxes" they are letterboxed.
    """
    if size is not None and size < 1:
        raise DataError(f"size must be at least 1 pixel, got {size}")
    held_out = parse_holdout(holdout)
    known, train, test = _read(spec, root, size, labels)
    both: dict[Part, Images | None] = {"train": train, "test": test}
    parts = {part: images for part, images in both.items() if images is not None}
    if held_out.source != "none" and held_out.source in parts:
        whole = parts[held_out.source]
        taken, rest = divide(whole.strata, held_out.share, seed)
        if not len(taken) or not len(rest):
            raise DataError(
                f"{held_out.source}:{held_out.share:g} of {len(whole.labels)} images are {len(taken)} held-out images, "
                f"and {len(rest)} remain; both numbers must be at least 1: give more images, or another share"
            )
        parts["holdout"], parts[held_out.source] = whole.take(taken), whole.take(rest)
    return ImageData(
        name=known.name,
        classes=known.classes,
        mean=_per_channel("mean", mean, known.mean),
        std=_per_channel("std", std, known.std),
        shape=known.shape,
        parts=MappingProxyType(parts),
        mirror=known.mirror,
        max_corrupt=max_corrupt,
        workers=workers,
    )


def roots(root: str | Path | None = None) -> tuple[Path, ...]:
    """The folders that are searched for data sets: `root`, or $PRUNUS_DATA, or ./data and the user's cache."""
    if root is not None:
        return (Path(root),)
    if os.environ.get("PRUNUS_DATA"):
        return (Path(os.environ["PRUNUS_DATA"]),)
    return (Path("data"), Path.home() / ".cache" / "prunus" / "data")


def locate(name: str, root: str | Path | None = None) -> Path | None:
    """The file or folder of `mnist`, `cifar10` or `cifar100`; None if it was not found."""
    return formats.locate(DATA_SETS[name], roots(root))


def _read(
    spec: str, root: str | Path | None, size: int | None, labels: LabelKind | None
) -> tuple[DataSet, Images | None, Images | None]:
    """What is known of a data set, its training and its test images, with `size` pixels if that is given."""
    check_data_set(spec)
    name, _, path = spec.partition(":")
    if name == "folder":
        place = Path(path).expanduser()
        if not boxes.has_boxes(place) and folders.has_no_labels(place):
            found = folders.read_unlabelled(place, size)
            return boxes.letterboxed(found) if labels == "boxes" else found
        there = next(kind for kind, folder in _FOLDERS.items() if folder.is_there(place))
        top = folders.training_folder(place)
        by_class = top.is_dir() and {child.name for child in top.iterdir() if child.is_dir()} - {"images"}
        if labels == "classes" and there != "classes" and (there in ("masks", "boxes") or not by_class):
            what, task = _FOLDERS[there].what, _FOLDERS[there].task
            raise DataError(f"{place}: this is {what}, not one folder per class: take the task {task}")
        return _FOLDERS[labels or there].read(place, size)
    if labels not in (None, "classes"):
        task = _FOLDERS[labels].task
        raise DataError(f"{name} has one class per image; for {task} take folder:PATH or module:function")
    if name == "imagenet":
        return folders.read_imagenet(Path(path).expanduser(), size)
    known = DATA_SETS[name]
    if name == "digits":
        train, test = formats.read_digits()
    else:
        stored = locate(name, path or root)
        if stored is None:
            looked = ", ".join(str(folder) for folder in roots(path or root))
            raise DataError(f"{name} was not found in {looked}; run `prunus data {name}`, or give --data-root FOLDER")
        train, test = formats.read(known, stored)
    if size is None:
        return known, train, test
    return replace(known, shape=(known.shape[0], size, size)), train.resized(size), test.resized(size)


def _per_channel(what: str, given: tuple[float, ...] | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if given is None:
        return default
    values = tuple(float(value) for value in given)
    if len(values) == 1:
        values *= len(default)
    bad = not all(np.isfinite(values)) or (what == "std" and min(values, default=0) <= 0)
    if len(values) != len(default) or bad:
        need = "positive " if what == "std" else ""
        count = f"one finite {need}number" if len(default) == 1 else f"one or {len(default)} finite {need}numbers"
        raise DataError(f"{what} must be {count}, got {list(given)}")
    return values
