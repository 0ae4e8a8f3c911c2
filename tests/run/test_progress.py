"""The long calls of the library report to a display unless they are told not to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import prunus as pr
from prunus.util import progress
from tests.run.test_speed_check import Stopwatch, stopwatch
from tests.run.toys import HOLDOUT, TRAIN, trained

__all__ = ["stopwatch"]  # a fixture


class Heard:
    """A display that remembers what it was shown."""

    def __init__(self) -> None:
        self.phases: dict[str, tuple[int, int | None]] = {}
        self.closed = 0

    def show(self, phase: str, done: int, total: int | None, note: str) -> None:
        self.phases[phase] = done, total

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    trained()  # it is trained once, and that is not of interest here
    found = Heard()
    monkeypatch.setattr(progress, "_new_display", lambda: found)
    return found


def graph() -> pr.ChannelGraph:
    return pr.trace(trained(), next(iter(TRAIN))[0][:1])


def score(**words: Any) -> None:
    pr.score(graph(), TRAIN, **words)


def sensitivity(**words: Any) -> None:
    found = graph()
    pr.sensitivity(found, pr.score(found, None, "l1", progress=False), HOLDOUT, exact=True, **words)


def repair(**words: Any) -> None:
    found = graph()
    plan = pr.uniform(found, pr.score(found, None, "l1", progress=False), ratio=0.3)
    pr.repair(found, plan, next(iter(TRAIN))[0], **words)


def fit(**words: Any) -> None:
    pr.fit(trained(), TRAIN, epochs=2, **words)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (score, {"score"}),
        (sensitivity, {"sensitivity"}),
        (repair, {"repair"}),
        (fit, {"train"}),
    ],
)
def test_long_work_is_shown_unless_false_turns_it_off(
    work: Callable[..., None], expected: set[str], heard: Heard
) -> None:
    work(progress=False)
    assert heard.phases == {}
    work()
    assert set(heard.phases) == expected
    assert all(done == total for done, total in heard.phases.values()) and heard.closed == 1


def test_a_run_is_one_display(heard: Heard) -> None:
    goal: dict[str, Any] = {"target": 0.2, "rounds": 1, "timing": False}
    pr.compress(trained(), TRAIN, HOLDOUT, **goal, metric="l1", repair="none", progress=False)
    assert heard.phases == {}
    pr.compress(trained(), TRAIN, HOLDOUT, **goal, epochs=1)
    rounds = ("score", "sensitivity", "repair", "evaluate", "learning rate", "retrain")
    assert set(heard.phases) == {"trace", "evaluate", "classes", *(f"round 1: {phase}" for phase in rounds)}
    assert all(done == total for done, total in heard.phases.values()) and heard.closed == 1

    def own(model: Any, train: Any, holdout: Any) -> Any:
        return pr.fit(model, train, holdout, epochs=1).model

    pr.compress(trained(), TRAIN, HOLDOUT, **goal, metric="l1", repair="none", fit=own)
    assert heard.phases["train"][0] == heard.phases["train"][1] and heard.closed == 2


def test_no_phase_is_unnamed_and_small_data_give_one_warning(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    """Channels are scored by the errors that a repair leaves, and that is not called repair."""
    order: list[str] = []
    known = heard.show
    heard.show = lambda phase, *rest: (order.append(phase), known(phase, *rest))[1]  # type: ignore[method-assign]
    pr.compress(trained(), TRAIN[:1], HOLDOUT, target=0.3, timing=False)
    assert list(dict.fromkeys(order)) == [
        *("trace", "evaluate", "round 1: score", "round 1: repair", "round 1: evaluate", "classes"),
    ]
    few = [record for record in caplog.records if "images are" in record.message and "few" in record.message]
    assert len([record for record in few if record.levelname == "WARNING"]) == 1


def test_a_speed_check_has_no_number_of_steps(stopwatch: Stopwatch, heard: Heard) -> None:
    pr.compress(trained(), TRAIN, HOLDOUT, speedup=1.3, batch=8, engine="eager", timing=False)
    speed = [total for phase, (_, total) in heard.phases.items() if phase.endswith(": speed")]
    assert speed and speed == [None] * len(speed)
