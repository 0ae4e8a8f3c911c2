"""The paper's method to the letter: its settings, and what a run with them costs.

G-SD, Algorithm 1 with all held-out images, alpha in [2, 4] as given, the paper's schedule for the data set after each
round, no repair and no distillation (sections 3.2 and 4 of the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from secateur.base.options import default_of
from secateur.errors import DecideError
from secateur.running.settings import Settings
from secateur.training.presets import preset_of
from secateur.training.settings import FineTuning

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph
    from secateur.running.run_estimate import Speed

FIXED: dict[str, Any] = {
    "metric": "gsd",
    "split": "algorithm1",
    "exact": True,
    "measure": "accuracy",
    "cost": "macs",
    "streams": "select",
    "repair": "none",
    "distill": False,
    **{field.name: default_of(field) for field in fields(FineTuning)},
    "rounds": None,
    "ratio": None,
    "speedup": None,
}
ALPHAS = (2.0, 4.0)
IMAGENET_IMAGES = 10_000  # that score channels in each round; on CIFAR all training images do
OPEN = (  # what the paper does not say, and what happens here
    "denominators of G-SD have a ridge of 0.05, from the first author's later code",
    "the epoch with the best held-out accuracy is kept",
    "a unit keeps at least 2 channels and 10% of its channels",
)


def schedule_for(data: str, model: str = "") -> str:
    """The preset with the paper's schedule for a data set, and for a network on ILSVRC-2012."""
    if data.partition(":")[0] != "imagenet":
        return "cifar"
    return "imagenet-vgg16" if "vgg" in model else "imagenet-resnet50"


def paper_settings(settings: Settings, data: str = "cifar10", model: str = "") -> Settings:
    """`settings` with everything that the paper fixes. Other values that were asked for in its place are refused.

    data, model: names, to choose the schedule and the number of images. epochs, lr, k, preset and num_images are the
    paper's unless they are given.
    """
    plain = {field.name: default_of(field) for field in fields(Settings)}
    for name, value in FIXED.items():
        asked = getattr(settings, name)
        if asked not in (plain[name], value):
            raise DecideError(f"the paper has {name} {value}, not {asked}: leave it out, or leave out --paper")
    if not ALPHAS[0] <= settings.alpha <= ALPHAS[1]:
        raise DecideError(f"the paper's alpha is in [2, 4], got {settings.alpha:g}")
    name = settings.preset if settings.preset != plain["preset"] else schedule_for(data, model)
    preset = preset_of(name, epochs=settings.epochs or None, lr=settings.lr)
    some = IMAGENET_IMAGES if data.partition(":")[0] == "imagenet" else None
    return replace(
        settings,
        **FIXED,
        preset=name,
        epochs=preset.epochs if settings.epochs is None else settings.epochs,
        lr=preset.lr,
        num_images=settings.num_images or some,
    )


def departures(settings: Settings, data: str, model: str = "") -> list[str]:
    """What differs from the paper's schedule and number of images, in words."""
    wanted = paper_settings(Settings(), data, model)
    names = ("preset", "epochs", "last_epochs", "lr", "num_images")
    return [
        f"{name} {getattr(wanted, name)} -> {getattr(settings, name)}"
        for name in names
        if getattr(settings, name) != getattr(wanted, name)
    ]


@dataclass(frozen=True)
class PaperCost:
    """What a run by the paper's settings costs on this machine."""

    rounds: int | None  # at least; None if max_drop alone ends the run
    epochs: int  # of each round
    share: float  # of the network's cost, removed by the first round
    round_seconds: float  # at the speed of the unpruned network

    def __str__(self) -> str:
        """Three short lines."""
        first = f"a round removes {self.share:.1%} of the network at first, and less as it shrinks"
        if self.rounds is None:
            return f"{first};\n{self.epochs:,} epochs and {_hours(self.round_seconds)} a round"
        return (
            f"{first}:\nat least {self.rounds} rounds of {self.epochs:,} epochs, {self.rounds * self.epochs:,} epochs "
            f"in all,\nabout {_hours(self.rounds * self.round_seconds)} on this machine, at the speed of the unpruned "
            "network"
        )


def paper_cost(graph: ChannelGraph, settings: Settings, speed: Speed, train_images: int, held_out: int) -> PaperCost:
    """The cost of a run, from the measured speed and the first round's step k x alpha x FLOSS_max."""
    import numpy as np

    from secateur.deciding.budget import Cutter
    from secateur.deciding.candidates import candidates
    from secateur.deciding.ranked_plan import step_at_alpha_1
    from secateur.running.run_estimate import estimate
    from secateur.scoring.scores import Scores

    budget = settings.budget(graph)
    cost = budget.of(graph)
    names = candidates(graph, settings.exclude, settings.only)
    plain = Scores("none", {name: np.arange(float(graph.units[name].width)) for name in names})
    step = settings.alpha * step_at_alpha_1(Cutter(graph, plain), names, settings.k, cost)
    found = estimate(speed, train_images, held_out, len(names), teacher=False)
    score = found.score * min(1.0, (settings.num_images or train_images) / train_images)
    epochs = settings.epochs or 0
    rounds = None if budget.left is None else max(1, math.ceil((cost({}) - budget.left) / step - 1e-9))
    return PaperCost(rounds, epochs, step / cost({}), score + found.rank + epochs * found.epoch)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} hours" if seconds >= 360 else f"{seconds / 60:,.1f} minutes"
