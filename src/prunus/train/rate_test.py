"""A short test that chooses a learning rate: the whole schedule, squeezed into a few steps, at several rates."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from prunus.train.fit import DivergedError, Evaluate, fit
from prunus.train.settings import Preset
from prunus.train.setup import SomeBatches, length
from prunus.util.batches import Batches
from prunus.util.progress import Progress

SHARES = (1.0, 0.3, 0.1, 0.03)  # of the schedule's rate
FEWEST_STEPS, MOST_STEPS = 10, 40  # of each try
SHARE_OF_RUN = 0.1  # all tries together take about this share of the training's steps
MARGIN = 0.05  # of the best accuracy: a rate within it is close


@dataclass(frozen=True)
class RateTry:
    """A rate and the held-out accuracy after its try; -inf if the training diverged."""

    lr: float
    quality: float


def steps_per_try(steps: int, epochs: int) -> int:
    """The number of steps of a try, for a training of `epochs` epochs of `steps` steps."""
    wanted = round(SHARE_OF_RUN * steps * epochs / len(SHARES))
    return min(steps, max(FEWEST_STEPS, min(MOST_STEPS, wanted)))


def try_rates(
    model: nn.Module,
    train: Batches,
    holdout: Batches,
    schedule: Preset,
    *,
    evaluate: Evaluate,
    progress: Progress | None = None,
    **others: Any,
) -> tuple[RateTry, ...]:
    """Train copies of `model` for a few steps, each at a share of the schedule's rate.

    A try warms up and decays as the schedule does, so that a high rate is judged after its decay. `others` are teacher,
    seed and further settings, as for `fit`.
    """
    few = SomeBatches(train, 0, steps_per_try(length(train), schedule.epochs), 1)
    tries = []
    for number, share in enumerate(SHARES):
        short = dataclasses.replace(schedule, epochs=1, lr=share * schedule.lr)
        try:
            quality = evaluate(fit(model, few, preset=short, progress=False, **others).model, holdout).quality
        except DivergedError:
            quality = -math.inf
        tries.append(RateTry(short.lr, quality))
        if progress is not None:
            progress(number + 1, len(SHARES))
    return tuple(tries)


def best_rate(tries: tuple[RateTry, ...], margin: float = MARGIN) -> float:
    """The highest rate whose quality comes close to the best of the tries.

    A few steps favour low rates, and a training recovers from a small loss at its start; so the limit is `margin`.
    """
    best = max(one.quality for one in tries)
    if math.isinf(best):
        return tries[-1].lr
    return max(one.lr for one in tries if one.quality >= best - margin * abs(best))
