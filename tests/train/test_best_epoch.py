"""The best epoch by held-out accuracy is kept, and the network before training counts as epoch 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from prunus.tasks.evaluate import Evaluation, evaluate
from prunus.train.checkpoint import digest
from prunus.train.fit import fit
from tests.train.toys import batches, network, same_tensors, state_of

TRAIN, HELD = batches(8), batches(2, seed=3)


class Scripted:
    """An evaluation that gives each state of the network, in the order they come, the next figure."""

    def __init__(self, *figures: float) -> None:
        self.figures, self.seen = figures, list[str]()

    def __call__(self, model: nn.Module, _loader: Any) -> Evaluation:
        found = digest(model)
        assert found is not None
        if found not in self.seen:
            self.seen.append(found)
        return Evaluation(self.figures[self.seen.index(found)], 0.0, 16)


@pytest.mark.parametrize(("figures", "best"), [((0.5, 0.6, 0.9, 0.7), 2), ((0.9, 0.1, 0.2, 0.3), 0)])
def test_the_best_epoch_is_returned(figures: tuple[float, ...], best: int) -> None:
    script = Scripted(*figures)
    fitted = fit(network(), TRAIN, HELD, epochs=3, lr=0.05, keep_best=True, evaluate=script)
    assert fitted.kept == best
    assert digest(fitted.model) == script.seen[best]
    assert [epoch.holdout.quality for epoch in fitted.history if epoch.holdout] == list(figures[1:])


def test_of_equal_epochs_the_last_is_taken() -> None:
    script = Scripted(0.5, 0.5, 0.5, 0.4)
    assert fit(network(), TRAIN, HELD, epochs=3, lr=0.05, keep_best=True, evaluate=script).kept == 2


def test_a_destructive_rate_leaves_the_network_as_it_was() -> None:
    good = fit(network(), TRAIN, TRAIN, epochs=8, lr=0.05).model
    before = state_of(good)
    plain = fit(good, TRAIN, TRAIN, epochs=2, lr=3.0)
    kept = fit(good, TRAIN, TRAIN, epochs=2, lr=3.0, keep_best=True)
    assert evaluate(plain.model, TRAIN).quality < evaluate(good, TRAIN).quality  # the rate is a bad one
    assert kept.kept == 0 and same_tensors(state_of(kept.model), before)
    assert plain.kept is None


@pytest.mark.parametrize("figures", [(0.5, 0.6, 0.9, 0.7, 0.8), (0.9, 0.6, 0.5, 0.7, 0.8), (0.1, 0.2, 0.3, 0.4, 0.5)])
def test_an_interrupted_run_keeps_the_same_bits(figures: tuple[float, ...], tmp_path: Path) -> None:
    script = Scripted(*figures)
    options: dict[str, Any] = {"epochs": 4, "lr": 0.05, "keep_best": True, "evaluate": script}
    whole = fit(network(0.2), TRAIN, HELD, **options)

    def stop(epoch: Any) -> None:
        if epoch.number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(network(0.2), TRAIN, HELD, checkpoint_dir=tmp_path, on_epoch=stop, **options)
    resumed = fit(network(0.2), TRAIN, HELD, checkpoint_dir=tmp_path, **options)
    again = fit(network(0.2), TRAIN, HELD, checkpoint_dir=tmp_path, **options)
    assert len(script.seen) == 5  # no state of the network that the unbroken run did not have
    assert resumed.kept == whole.kept == again.kept == figures.index(max(figures))
    assert digest(resumed.model) == digest(whole.model) == digest(again.model)
