"""Data of the user's own, `--data your.module:make_data`, in the form in which verbs read a data set by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from secateur.base.own_code import made_by_own_function
from secateur.errors import DataError

if TYPE_CHECKING:
    from secateur.base.batches import Batches
    from secateur.measuring.tasks import Task

LOADERS = ("train", "holdout", "test", "score_on")
NAMES = (*LOADERS, "example")


@dataclass(frozen=True, eq=False)
class OwnData:
    """The loaders that a function of the user's own made. Of classes, channels and normalisation nothing is known."""

    name: str
    loaders: Mapping[str, Any]  # part -> batches
    task: Task
    given: Any = None  # an input of the network; the first training image by default
    classes: tuple[str, ...] = ()

    def count(self, part: str) -> int:
        """Number of images in a part; 0 if the part does not exist. Loaders that do not reveal it are read."""
        from secateur.base.batches import count_images
        from secateur.measuring.quality_sums import unpack_for
        from secateur.running.data_identity import images_in

        if part not in self.loaders:
            return 0
        known = images_in(self.loaders[part])
        if known is not None:
            return known
        batches = enumerate(self.loaders[part])
        return sum(count_images(unpack_for(self.task, batch, n, labelled=False)[0]) for n, batch in batches)

    def has(self, part: str) -> bool:
        """Whether there are images of a part."""
        return part in self.loaders

    def example(self) -> Any:
        """An input of the network: one image."""
        import torch

        from secateur.base.preserve_state import generators_kept
        from secateur.running.example_input import first_image

        if self.given is not None:
            return self.given
        with generators_kept():  # a loader that shuffles draws random numbers
            return first_image(self.loaders["train"], torch.device("cpu"), self.task)

    def loader(
        self, part: str, _batch_size: int = 0, *, limit: int | None = None, seed: int = 0, **_how: Any
    ) -> Batches:
        """The user's own batches of a part, in their own size and order; a sample of `limit` images if it is given."""
        from secateur.scoring.sampling import sampled

        if part not in self.loaders:
            raise DataError(f"{self.name} has no {part} images; it returned {', '.join(self.loaders)}")
        return sampled(self.loaders[part], limit, seed, self.task)

    def as_arguments(self) -> dict[str, Any]:
        """The parts as arguments of `compress`."""
        return {**self.loaders, "example": self.given}


def open_own_data(spec: str, task: Task) -> OwnData:
    """What make_data returned: two or three loaders, or a dict with some of NAMES."""
    made = made_by_own_function(spec, DataError)
    if isinstance(made, tuple | list) and 2 <= len(made) <= 3:
        made = dict(zip(LOADERS, made, strict=False))
    known = isinstance(made, Mapping) and set(made) <= set(NAMES) and {"train", "holdout"} <= set(made)
    if not known:
        got = f"the keys {sorted(map(str, made))}" if isinstance(made, Mapping) else f"a {type(made).__name__}"
        raise DataError(
            f"{spec!r} must return loaders (train, holdout) or (train, holdout, test), or a dict of "
            f"{', '.join(NAMES)}; it returned {got}"
        )
    loaders = {name: made[name] for name in LOADERS if made.get(name) is not None}
    return OwnData(spec, loaders, task, made.get("example"))
