"""Settings declared once: types, bounds and choices are checked; lists are read from text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from prunus.errors import DecideError, PrunusError
from prunus.util.options import check, names, normalise, numbers, option, options_of, parse_value, plain, replaced
from prunus.util.registry import Entry


@dataclass(frozen=True)
class Bake:
    heat: float = option(180.0, "Degrees", group="Oven", above=0, most=300)
    rounds: int | None = option(None, "How often", group="Oven", least=1)
    fan: bool = option(False, "Whether the fan is on", group="Oven")
    count: int = option(1, "Cakes", group="Cake", parse=lambda text: int(text) * 10)
    shape: str = option("round", "Shape of the cake", group="Cake", choices=("round", "square"), with_options=True)
    filling: Any = option("none", "Filling", group="Cake", choices=("none", "plum"), user_code=True)
    toppings: tuple[str, ...] = option((), "Toppings", group="Cake", several=True)
    taste: Callable[[], float] | None = option(None, "Judges the cake", hidden=True)
    extras: dict[str, int] = option({}, "Others", hidden=True)
    note: str = "not an option"

    def __post_init__(self) -> None:
        normalise(self)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heat": 0.0}, r"heat must be above 0 and at most 300, got 0.0 \(Degrees\)"),
        ({"heat": 301.0}, "at most 300"),
        ({"heat": float("nan")}, "got nan"),
        ({"heat": "hot"}, "got 'hot', which is no number but str"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"rounds": 1.5}, "rounds must be a whole number, got 1.5"),
        ({"rounds": True}, "got True"),
        ({"fan": 1}, "fan must be True or False, got 1"),
        ({"count": 2.0}, "count must be a whole number"),
        ({"shape": "sqare:side=3"}, "shape must be one of round, square; got 'sqare' .did you mean square"),
        ({"filling": "plumm"}, "did you mean plum"),
        ({"toppings": (1,)}, r"toppings must be a string or several strings, got \(1,\)"),
        ({"taste": 3}, "taste must be a function, got 3"),
        ({"extras": [1]}, "extras must be a dict"),
    ],
)
def test_bad_values_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DecideError, match=message):
        check(Bake(**settings), DecideError)


def test_good_values_pass() -> None:
    check(Bake(), DecideError)
    jam = Entry(name="jam", help="Home-made")
    cake = Bake(300.0, 1, True, 2, "square:side=3", jam, "nuts", lambda: 1.0, {"a": 1})  # type: ignore[arg-type]
    check(cake, DecideError)
    assert cake.toppings == ("nuts",)
    typed = Bake(heat=np.float32(200), rounds=np.int64(3), count="2")  # type: ignore[arg-type]
    check(typed, DecideError)
    assert (typed.heat, typed.rounds, typed.count) == (200.0, 3, 20) and type(typed.rounds) is int
    assert [field.name for field, _ in options_of(Bake)][-1] == "extras"
    assert plain(cake)["filling"] == "jam" and plain(cake)["taste"] == "<lambda>"
    assert Bake().extras is not Bake().extras


def test_settings_are_changed_by_name() -> None:
    assert replaced(Bake(), {"count": 3}, DecideError) == Bake(count=3)
    with pytest.raises(DecideError, match="no setting called 'cout': did you mean count"):
        replaced(Bake(), {"cout": 3}, DecideError)
    with pytest.raises(DecideError, match="settings must be an object such as"):
        replaced(Bake, {}, DecideError)


def test_lists_in_text() -> None:
    assert names(" gsd, l1,,gsd:ridge=0.5 ") == ("gsd", "l1", "gsd:ridge=0.5")
    assert numbers("0.1,0.25 3") == (0.1, 0.25, 3.0)
    with pytest.raises(PrunusError, match=r"numbers separated by commas, such as 0\.1,0\.2; got '0\.1;0\.2'"):
        numbers("0.1;0.2")


def test_values_as_they_are_typed() -> None:
    texts = {"3": 3, "0.5": 0.5, "true": True, '["a"]': ["a"], "test:0.5": "test:0.5", "gsd,di": "gsd,di"}
    assert {text: parse_value(text) for text in texts} == texts
