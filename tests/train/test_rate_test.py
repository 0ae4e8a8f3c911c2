"""The short test that chooses a learning rate."""

from __future__ import annotations

import math

import pytest

from prunus.tasks.evaluate import evaluate
from prunus.train.fit import fit
from prunus.train.rate_test import RateTry, best_rate, steps_per_try, try_rates
from prunus.train.settings import preset_of
from tests.train.toys import batches, network, same_tensors, state_of


@pytest.mark.parametrize(
    ("figures", "rate"),
    [
        ((0.9, 0.9, 0.9, 0.9), 1.0),
        ((0.4, 0.92, 0.93, 0.95), 0.3),  # 0.92 > 0.95 - 0.0475
        ((0.4, 0.90, 0.93, 0.95), 0.1),  # 0.90 < 0.9025
        ((-math.inf, 0.1, 0.2, 0.9), 0.03),
        ((-math.inf, -math.inf, -math.inf, -math.inf), 0.03),
        ((-3.0, -2.05, -2.0, -2.0), 0.3),  # a figure of the user's own: -2.1 is the limit
    ],
)
def test_the_highest_rate_close_to_the_best(figures: tuple[float, ...], rate: float) -> None:
    tries = tuple(RateTry(lr, top1) for lr, top1 in zip((1.0, 0.3, 0.1, 0.03), figures, strict=True))
    assert best_rate(tries) == rate


@pytest.mark.parametrize(
    ("steps", "epochs", "each"),
    [(352, 30, 40), (352, 3, 26), (13, 2, 10), (13, 60, 13), (5, 1, 5), (1, 1, 1)],  # a tenth of all, in four tries
)
def test_the_length_of_a_try(steps: int, epochs: int, each: int) -> None:
    assert steps_per_try(steps, epochs) == each


def test_a_rate_that_destroys_a_trained_network_is_not_taken() -> None:
    train, held = batches(16), batches(4, seed=3)
    good = fit(network(), train, held, epochs=12, lr=0.05).model
    before = state_of(good)
    tries = try_rates(good, train, held, preset_of("cosine", epochs=2, lr=30.0), evaluate=evaluate, seed=0)
    assert [one.lr for one in tries] == pytest.approx([30.0, 9.0, 3.0, 0.9])
    chosen = best_rate(tries)
    assert chosen < 30.0 and evaluate(good, held).quality > tries[0].quality
    assert same_tensors(state_of(good), before)


def test_a_wider_margin_takes_a_higher_rate() -> None:
    """Of losses, which are qualities below zero: 1.0 is the best, and 1.4 and 1.6 are 40 and 60% above it."""
    tries = tuple(RateTry(lr, -loss) for lr, loss in ((0.02, 1.6), (0.006, 1.4), (0.002, 1.0)))
    assert [best_rate(tries, margin) for margin in (0.7, 0.5, 0.1)] == [0.02, 0.006, 0.002]
