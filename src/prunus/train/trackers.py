"""Figures of training and pruning for experiment trackers, through Accelerate: TensorBoard, wandb and others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prunus.errors import RunError
from prunus.util.options import option
from prunus.util.registry import unknown

if TYPE_CHECKING:
    from prunus.tasks.quality import QualityText
    from prunus.train.checkpoint import Epoch

Log = Callable[[Mapping[str, float | None], int], None]  # name -> figure; step
PROJECT = "prunus"
BOARD = "tensorboard"


def check_tracker(name: str) -> None:
    """RunError unless Accelerate knows the tracker and its package is installed."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if name not in LOGGER_TYPE_TO_CLASS:
        raise RunError(unknown("tracker", name, sorted(LOGGER_TYPE_TO_CLASS)))
    if name not in [str(getattr(one, "value", one)) for one in get_available_trackers()]:
        package = "'prunus[trackers]'" if name == BOARD else name
        raise RunError(f"the tracker {name} is not installed: pip install {package}")


@dataclass(frozen=True)
class TrackerSettings:
    """Where figures are sent, besides the run's own files. It changes nothing in the result."""

    tracker: str | None = option(
        None,
        "Send figures to a tracker: tensorboard, or wandb and others where they are installed",
        group="Output",
        valid=check_tracker,
    )


def nowhere(figures: Mapping[str, float | None], step: int) -> None:
    """A `Log` that keeps nothing."""


@contextmanager
def tracking(
    name: str | None, folder: Path | None, config: Mapping[str, Any], done: int | None = None
) -> Iterator[Log]:
    """A function that sends figures to a tracker; without a tracker it does nothing.

    TensorBoard's files go to `folder`/tensorboard. A continued run has `done` steps behind it; TensorBoard drops later
    ones, of a run that was killed. The tracker begins with the first figures: nothing is written for a refused run.
    """
    if name is None:
        yield nowhere
        return
    check_tracker(name)
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    kind: Any = LOGGER_TYPE_TO_CLASS[name]
    if kind.requires_logging_directory and folder is None:
        raise RunError(f"the tracker {name} writes files: give the run a folder")
    tracker: Any = None

    def log(figures: Mapping[str, float | None], step: int) -> None:
        nonlocal tracker
        if tracker is None:
            PartialState()  # trackers ask it which process they are in
            more = {"purge_step": None if done is None else done + 1} if name == BOARD else {}
            places = (folder,) if kind.requires_logging_directory else ()
            tracker = kind(BOARD if name == BOARD else PROJECT, *places, **more)
            tracker.start()
            simple = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in config.items()}
            tracker.store_init_configuration(simple)
        finite = {tag(key): v for key, v in figures.items() if v is not None and math.isfinite(v)}
        tracker.log(finite, step=step)

    try:
        yield log
    finally:
        if tracker is not None:
            tracker.finish()


def tag(name: str) -> str:
    """A name as all trackers take it: layer1.0.conv1:out -> layer1.0.conv1.out."""
    return name.replace(" ", "_").replace(":", ".")


def epoch_figures(epoch: Epoch, quality: QualityText) -> dict[str, float | None]:
    """The figures of an epoch."""
    held = epoch.holdout
    held_out = {} if held is None else {f"holdout/{quality.name}": held.quality, "holdout/loss": held.loss}
    return {
        "train/loss": epoch.loss,
        f"train/{quality.name}": epoch.quality,
        "train/lr": epoch.lr,
        "train/images_per_second": epoch.images_per_second,
        **held_out,
    }
