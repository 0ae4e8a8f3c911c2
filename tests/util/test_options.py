"""Settings declared once: bounds and choices are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from prunus.errors import DecideError
from prunus.util.options import check, option


@dataclass(frozen=True)
class Bake:
    heat: float = option(180.0, "Degrees", group="Oven", above=0, most=300)
    rounds: int | None = option(None, "How often", group="Oven", least=1)
    shape: str = option("round", "Shape of the cake", group="Cake", choices=("round", "square"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"heat": 0.0}, "heat must be above 0 and at most 300, got 0.0"),
        ({"heat": 301.0}, "at most 300"),
        ({"heat": float("nan")}, "got nan"),
        ({"heat": "hot"}, "got 'hot'"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"shape": "sqare"}, "shape must be one of round, square; got 'sqare' .did you mean square"),
    ],
)
def test_bad_values_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(DecideError, match=message):
        check(Bake(**words), DecideError)


def test_good_values_pass() -> None:
    check(Bake(), DecideError)
    check(Bake(heat=300.0, rounds=1, shape="square"), DecideError)
