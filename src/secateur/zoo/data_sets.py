"""The data sets that can be named. Nothing here imports torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass


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
        DataSet("mnist", "70,000 grey 28x28 images, 10 classes", "secateur data get mnist", 10),
        DataSet("cifar10", "60,000 RGB 32x32 images, 10 classes", "secateur data get cifar10", 10),
        DataSet("cifar100", "60,000 RGB 32x32 images, 100 classes", "secateur data get cifar100", 100),
        DataSet("imagenet", "ILSVRC-2012, 1000 classes", "your own copy", 1000, needs_path=True),
        DataSet("folder", "your own images, one folder per class", "your own files", needs_path=True),
    )
}
NAMES = tuple(known.typed for known in DATA_SETS.values())


def num_classes(spec: str) -> int | None:
    """Number of classes of a data set as it is typed (`cifar10`, `imagenet:PATH`); None if it is not known."""
    known = DATA_SETS.get(spec.partition(":")[0])
    return None if known is None else known.num_classes
