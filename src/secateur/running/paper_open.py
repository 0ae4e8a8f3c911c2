"""What the paper leaves open, and what happens here, in the words of `prune --paper` and the recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from secateur.running.paper import ridge_of, schedule_for
from secateur.running.settings import Settings
from secateur.zoo.holdout import parse_holdout

PAPERS_DATA = ("cifar10", "cifar100", "imagenet")  # that the paper prunes networks on
DEFAULT_RIDGE = "0.05, from the first author's later code"
EPOCHS = "The paper gives one number of fine-tuning epochs: it is used for each round."
BEST = "Which epoch of a fine-tuning is taken is not given: the one with the best held-out accuracy here."
FLOOR = "How far a layer may shrink is not given: here it keeps at least 2 channels and 10% of its channels."


@dataclass(frozen=True)
class Choices:
    """What a run chooses where the paper leaves it open."""

    ridges: Sequence[Any]  # of every G-SD in the run; None for the default
    alpha: Any
    k: int | None  # None: a third of the units
    data: str
    holdout: str | None  # as typed (train:0.1); None for loaders of the user's own
    rounds: int | None = None  # None: as many as necessary
    retrains: bool = True


def open_points(choices: Choices) -> dict[str, str]:
    """The sentences by the names that recipe files call them by; empty where nothing is left open."""
    return {
        "ridge": _ridge(choices.ridges),
        "epochs": EPOCHS if choices.retrains else "",
        "best_epoch": BEST if choices.retrains else "",
        "floor": FLOOR,
        "k_and_alpha": _k_and_alpha(choices),
        "images": _images(choices.data, choices.holdout),
    }


def left_open(settings: Settings, data: str, holdout: str | None) -> tuple[str, ...]:
    """The sentences for a run by the paper's settings. holdout: as typed; None for loaders of the user's own."""
    retrains = settings.epochs != 0 or bool(settings.last_epochs)
    points = open_points(
        Choices([ridge_of(settings)], settings.alpha, settings.k, data, holdout, retrains=retrains),
    )
    known = data.partition(":")[0] in PAPERS_DATA or settings.preset != schedule_for(data)
    schedule = "" if known else f"The paper has no schedule for {data}: that of its CIFAR experiments is used here."
    return tuple(words for words in (*points.values(), schedule) if words)


def ridges_in(metrics: str) -> list[Any]:
    """The ridge of every G-SD in metrics as typed, None for the default: [0.0, None] for "gsd:ridge=0,di,gsd"."""
    found = [word.strip().split(":") for word in metrics.split(",")]
    return [_options(parts).get("ridge") for name, *parts in found if name == "gsd"]


def only_drops_ridge(was: Any, now: Any) -> bool:
    """Whether metrics as typed differ only by the ridge of G-SD, which is now 0 as in the paper's formula."""
    if not isinstance(was, str) or not isinstance(now, str) or was == now:
        return False
    return [_as_printed(word) for word in now.split(",")] == was.split(",")


def _as_printed(word: str) -> str:
    name, *parts = word.strip().split(":")
    return name if name == "gsd" and parts and _options(parts) == {"ridge": 0} else word


def _options(parts: Sequence[str]) -> dict[str, Any]:
    if not parts:
        return {}
    from secateur.scoring.metric_choice import parse_options

    return parse_options(parts)


def _ridge(ridges: Sequence[Any]) -> str:
    """The paper's formula of G-SD has no ridge, so 0 needs no words."""
    shown = dict.fromkeys(DEFAULT_RIDGE if ridge is None else _number(ridge) for ridge in ridges if ridge != 0)
    if not shown:
        return ""
    return (
        "G-SD divides by variances, which are 0 where a channel is dead for a class: its denominators have a ridge of "
        f"{' and '.join(shown)}. gsd:ridge=0 leaves it out."
    )


def _k_and_alpha(choices: Choices) -> str:
    """A given number of rounds has its alpha solved."""
    third = "a third of the units" if choices.k is None else f"k = {choices.k}"
    here = f"{third} and alpha {_number(choices.alpha)} here, with as many rounds as necessary."
    if choices.rounds is not None:
        here = f"{third} here, and the alpha with which {choices.rounds} rounds reach the goal."
    return f"k is 'around one-third' of the layers and alpha in [2, 4]: {here}"


def _images(data: str, holdout: str | None) -> str:
    name = data.partition(":")[0]
    why = {"cifar10": ", and CIFAR has no validation set", "cifar100": ", and CIFAR has no validation set"}
    start = f"The layers are chosen by validation accuracy{why.get(name, '; which images is not given')}: "
    if holdout is None:
        return f"{start}those of your held-out loader decide here."
    held_out = parse_holdout(holdout)
    share = f"{100 * held_out.share:g}%"
    if held_out.source == "none":
        return f"{start}no images are held out here."
    if held_out.source == "train":
        return f"{start}{share} of the training images are held out here, and not used for training."
    part = "validation" if name == "imagenet" else "test"
    return (
        f"{start}{share} of the {part} images decide here, because a trained network has seen the training images. The "
        "others are for the report."
    )


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
