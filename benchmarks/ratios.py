"""Rows of `make bench`: a ratio measured in one run, the bound that it must keep, and whether it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]  # name, ratio, bound, better ("higher" or "lower"), met


def row(name: str, ratio: float, bound: float, better: str) -> Row:
    """One line of the table."""
    met = ratio >= bound if better == "higher" else ratio <= bound
    return {"name": name, "ratio": ratio, "bound": bound, "better": better, "met": met}


def turn_about(left: Callable[[], Any], right: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The least CPU seconds that each took on one core, in turns after a warm-up: other work only ever adds."""
    left(), right()
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.process_time()
            (left, right)[side]()
            seconds[side].append(time.process_time() - start)
    return min(seconds[0]), min(seconds[1])


def say(rows: Sequence[Row]) -> None:
    """The table on the screen."""
    width = max((len(each["name"]) for each in rows), default=0)
    print(f"\n{'':{width}}  measured  bound")
    for each in rows:
        sign = ">=" if each["better"] == "higher" else "<="
        missed = "" if each["met"] else "NOT MET"
        print(f"{each['name']:{width}}  {each['ratio']:8.3f}  {sign} {each['bound']:<6} {missed}")
