"""The images of a verb: options of a data set by name, and user-provided loaders in the form of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from prunus.cli.network import NamedModel
from prunus.cli.options import settings_from
from prunus.errors import DataError
from prunus.tasks import TASKS, Task, task_of
from prunus.util.options import numbers, option
from prunus.util.user_code import call_user_function
from prunus.zoo.names import NAMES, check_data_set, is_user_data, parse_holdout

if TYPE_CHECKING:
    from torch import nn

    from prunus.util.batches import Batches
    from prunus.zoo.data import ImageData

DATA_HELP = f"Data set: {', '.join(NAMES)} or your_module:make_data; a run has its own"
HOLDOUT_HELP = "Held-out images: train:SHARE, test:SHARE or none"


@dataclass(frozen=True)
class DataOptions:
    """The data set: its name, where it is, and how its images are prepared and divided."""

    data: str | None = option(None, DATA_HELP, group="Data", everyday=True, valid=check_data_set)
    holdout: str = option("train:0.1", HOLDOUT_HELP, group="Data", valid=parse_holdout)
    data_root: Path | None = option(None, "Folder that holds the data set", group="Data")
    mean: str | None = option(None, "Mean to subtract, as in 0.485,0.456,0.406", group="Data", valid=numbers)
    std: str | None = option(None, "Standard deviation to divide by", group="Data", valid=numbers)
    size: int | None = option(None, "Height and width of the images in pixels", group="Data", least=1)
    workers: int = option(0, "Number of processes that decode image files", group="Data", least=0)

    @property
    def name(self) -> str:
        """The data set as it is typed, once it is known."""
        assert self.data is not None
        return self.data

    @property
    def _given(self) -> list[str]:
        return [f.name for f in fields(self) if getattr(self, f.name) != f.default]

    def known_for(self, named: NamedModel) -> Self:
        """These options, where those that were not given are those of the run that MODEL names, if it is one."""
        if self.data is None and not named.run_options.get("data"):
            raise DataError(
                f"{named.typed} needs images: give --data NAME ({', '.join(NAMES)} or your_module:make_data)"
            )
        if self.data not in (None, named.run_options.get("data")):
            return self
        before = vars(settings_from(DataOptions, named.run_options))
        return replace(self, **{name: value for name, value in before.items() if name not in self._given})

    def seed_for(self, named: NamedModel, seed: int) -> int:
        """The seed that divides the images: that of the run, if MODEL is one on the same images."""
        same = (named.run_options.get("data"), named.run_options.get("holdout")) == (self.data, self.holdout)
        return int(named.run_options.get("seed", seed)) if same else seed

    def open(self, named: NamedModel, seed: int = 0, task: Any = None) -> AnyData:
        """The data set, with the size, mean and standard deviation that the network names unless others are given.

        A run's own data set is divided as it was for the run: what it was trained on is not held out.

        Args:
            task: What the network is for, which says what the labels are.
        """
        wanted, name = task_of(task), self.name
        if is_user_data(name):
            for given in (each for each in self._given if each != "data"):
                what = given.replace("_", "-")
                raise DataError(f"--{what} does not apply to {name}, which prepares and divides its images itself")
            return open_user_data(name, wanted)
        from prunus.zoo.data import load

        known, size = {part: getattr(named.config, part) for part in ("mean", "std") if named.declares(part)}, self.size
        if size is None and not named.any_size and (not named.is_user_provided or named.declares("shape")):
            size = named.config.shape[-1]
        opened = load(
            name,
            self.data_root,
            mean=known.get("mean") if self.mean is None else numbers(self.mean),
            std=known.get("std") if self.std is None else numbers(self.std),
            size=size,
            holdout=self.holdout,
            workers=self.workers,
            seed=self.seed_for(named, seed),
            labels=wanted.label_kind,
        )
        kept = named.run_options.get("classes")
        if kept and named.run_options.get("data") == self.data:  # the run's network knows only these
            opened = opened.only(opened.class_numbers(kept))
        if opened.labelled and wanted.label_kind is None and wanted.name in TASKS:
            raise DataError(
                f"{name} holds no labels for {wanted.name}: give loaders of your own, --data your_module:make_data"
            )
        return opened

    def open_classes(self, named: NamedModel, seed: int = 0) -> ImageData:
        """A data set with one class per image; DataError for any other."""
        task = task_of(named.task(None))
        data = self.open(named, seed, task)
        if not data.labelled:
            raise DataError(f"{data.name} has no labels: this needs one class per image, as in one folder per class")
        if isinstance(data, UserData) or task.label_kind != "classes":
            raise DataError(f"{data.name}: this needs one class per image, of a data set by name: {', '.join(NAMES)}")
        return data


@dataclass(frozen=True)
class UndividedData(DataOptions):
    """A data set without held-out images, unless the user asks for them."""

    holdout: str = option("none", HOLDOUT_HELP, group="Data", valid=parse_holdout)


def task_on(data: AnyData, task: Task, original: Callable[[], nn.Module]) -> Task:
    """The task, or agreement with the original network if the images have no labels."""
    from prunus.tasks.agreement import agreement

    return task if data.labelled else agreement(original(), task)


# -- `--data your.module:make_data`

LOADERS = ("train", "holdout", "test", "score_on")
RETURNED = (*LOADERS, "example")


@dataclass(frozen=True, eq=False)
class UserData:
    """The loaders that a user-provided function made. Of classes, channels and normalisation nothing is known."""

    name: str
    loaders: Mapping[str, Any]  # part -> batches
    task: Task
    given: Any = None  # an input of the network; the first training image by default
    classes: tuple[str, ...] = ()
    shape: None = None

    @cached_property
    def labelled(self) -> bool:
        from prunus.run.first_look import first_batch

        return first_batch(self.loaders["holdout"], "holdout", self.task).labels is not None

    def count(self, part: str) -> int:
        """Number of images in a part; 0 if the part does not exist. Loaders that do not reveal it are read."""
        from prunus.run.identity import images_in
        from prunus.tasks.evaluate import unpack_for
        from prunus.util.batches import count_images

        if part not in self.loaders:
            return 0
        known = images_in(self.loaders[part])
        if known is not None:
            return known
        batches = enumerate(self.loaders[part])
        return sum(count_images(unpack_for(self.task, batch, n, labelled=False)[0]) for n, batch in batches)

    def has(self, part: str) -> bool:
        return part in self.loaders

    def example(self) -> Any:
        from torch import Tensor
        from torch.utils._pytree import tree_map

        from prunus.run.first_look import first_batch

        if self.given is not None:
            return self.given
        images = first_batch(self.loaders["train"], "train", self.task).images
        return tree_map(lambda part: part[:1].cpu() if isinstance(part, Tensor) else part, images)

    def loader(
        self, part: str, _batch_size: int = 0, *, limit: int | None = None, seed: int = 0, **_how: Any
    ) -> Batches:
        """The batches of a part, in their own size and order; a sample of `limit` images if it is given."""
        from prunus.scoring.passes import sampled

        if part not in self.loaders:
            raise DataError(f"{self.name} has no {part} images; it returned {', '.join(self.loaders)}")
        return sampled(self.loaders[part], limit, seed, self.task)


def open_user_data(spec: str, task: Task) -> UserData:
    """What make_data returned: two or three loaders, or a dict with some of RETURNED."""
    from prunus.util.batches import check_batches

    made = call_user_function(spec, DataError)
    if isinstance(made, tuple | list) and 2 <= len(made) <= 3:
        made = dict(zip(LOADERS, made, strict=False))
    known = isinstance(made, Mapping) and set(made) <= set(RETURNED) and {"train", "holdout"} <= set(made)
    if not known:
        got = f"the keys {sorted(map(str, made))}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise DataError(
            f"{spec!r} must return loaders (train, holdout) or (train, holdout, test), or a dict of "
            f"{', '.join(RETURNED)}; it returned {got}"
        )
    loaders = {name: made[name] for name in LOADERS if made.get(name) is not None}
    for name, loader in loaders.items():
        check_batches(loader, f"{name} of {spec!r}", again=True)
    return UserData(spec, loaders, task, made.get("example"))


if TYPE_CHECKING:
    AnyData = ImageData | UserData
