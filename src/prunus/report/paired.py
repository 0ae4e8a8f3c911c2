"""Runs of a comparison tested in pairs on the same images, and their means over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from torch import Tensor

from prunus.errors import RunError
from prunus.report.page import Cell, Table
from prunus.report.read import FinishedRun
from prunus.report.text import points
from prunus.run.identity import same_images
from prunus.run.settings import Settings
from prunus.tasks import TASKS, task_of
from prunus.tasks.paired import PairedTest, paired_test
from prunus.tasks.quality import QualityText

ORIGINAL = "original"
MOST_RUNS = 12  # whose pairs are all tested; of more, each run is tested against its original and the first run


@dataclass(frozen=True)
class Pair:
    """Two networks of a comparison.

    Attributes:
        first: Letter of a run, or "original" for the unpruned network of the second one.
        second: Letter of a run, whose quality minus that of the first is the difference.
        result: The test; None if there is none.
        reason: Why there is none.
    """

    first: str
    second: str
    result: PairedTest | None
    reason: str = ""


def tested(runs: Sequence[tuple[str, FinishedRun]]) -> tuple[Pair, ...]:
    """Each run against its original, and every two runs, by the same quality on the same images.

    Args:
        runs: Letters and finished runs.
    """
    pairs = []
    for letter, run in runs:
        if run.predictions is not None and not (run.config.get("start") or {}).get("earlier"):
            pairs.append(_pair(ORIGINAL, run, letter, run, "before"))
    every = itertools.combinations(runs, 2) if len(runs) <= MOST_RUNS else (((runs[0]), each) for each in runs[1:])
    pairs += [_pair(a, one, b, two) for (a, one), (b, two) in every]
    return tuple(pairs)


def _pair(a: str, one: FinishedRun, b: str, two: FinishedRun, side: str = "after") -> Pair:
    reason = _obstacle(one, two)
    if reason:
        return Pair(a, b, None, reason)
    assert one.predictions is not None and two.predictions is not None
    try:
        value = _value_of(two)
        return Pair(a, b, paired_test(one.predictions.of[side], two.predictions.of["after"], value))
    except RunError as error:
        return Pair(a, b, None, str(error))


def _obstacle(one: FinishedRun, two: FinishedRun) -> str:
    """Why two runs cannot be tested in pairs; nothing if they can."""
    if one.predictions is None or two.predictions is None:
        return "the quality of single images is not known (an older run, or an evaluation of its own)"
    if one.summary.quality != two.summary.quality:
        return "they are judged by different qualities"
    if one.predictions.part != two.predictions.part:
        return "one has test images and the other only held-out images"
    facts = [(run.config.get("data") or {}).get(run.predictions.part) for run in (one, two) if run.predictions]
    return "" if same_images(*facts) else "they were measured on different images"


def _value_of(run: FinishedRun) -> Callable[[Tensor], float] | None:
    """The function from sums to the quality of a run's task; None for a mean over images."""
    assert run.predictions is not None
    if run.predictions.of["after"].values.ndim == 1:
        return None
    name = run.settings.task
    if name is not None and name not in TASKS:
        raise RunError(f"the task {name} is user-provided, and its quality is no mean over images")
    return task_of(name).measured.value


def pair_table(pairs: Sequence[Pair], names: Mapping[str, str], quality: QualityText) -> Table | None:
    """The tests as a table of the page; None if there are none."""
    rows = []
    for place, pair in enumerate(pairs):
        who = f"{pair.second} against {'its original' if pair.first == ORIGINAL else pair.first}"
        title = " against ".join(names.get(each, each) for each in (pair.second, pair.first))
        if (test := pair.result) is None:
            rows.append([Cell(who, place, title), Cell("not tested", 0.0, pair.reason), *[Cell("–", -1.0)] * 4])
            continue
        error = quality.size(test.standard_error).rpartition(" ")[0] or quality.size(test.standard_error)
        counts = "–" if test.better is None else f"{test.better:,} and {test.worse:,}"
        rows.append(
            [
                Cell(who, place, title),
                Cell(
                    f"{points(test.difference, quality)} ±{error}",
                    test.difference,
                    "± standard error of the difference",
                ),
                Cell(counts, float(test.better or 0), "images where only the one is better, and only the other"),
                Cell(f"{test.num_images:,}", float(test.num_images)),
                Cell(test.test, 0.0),
                Cell(test.p_text, test.p, repr(test.p)),
            ]
        )
    headings = ["runs", "difference", "better and worse", "images", "test", "p"]
    return Table("Paired tests", headings, rows, texts=(0, 4)) if rows else None


# -- runs that differ only in their seed


@dataclass(frozen=True)
class OverSeeds:
    """Runs with the same settings but for the seed.

    Attributes:
        letters: Of the runs.
        quality: Mean quality after pruning.
        standard_error: Of that mean: the standard deviation over the runs / sqrt(their number).
        change: Mean change of the quality.
        change_error: Its standard error.
    """

    letters: tuple[str, ...]
    quality: float
    standard_error: float
    change: float
    change_error: float


def over_seeds(runs: Iterable[tuple[str, FinishedRun, float, float]]) -> tuple[OverSeeds, ...]:
    """The groups of at least two runs that differ in nothing but the seed.

    Args:
        runs: Letter, run, quality before and after.
    """
    groups: dict[str, list[tuple[str, float, float]]] = {}
    for letter, run, before, after in runs:
        groups.setdefault(_but_for_the_seed(run), []).append((letter, before, after))
    found = []
    for mine in groups.values():
        if len(mine) > 1:
            values, changes = [after for *_, after in mine], [after - before for _, before, after in mine]
            errors = [stdev(each) / math.sqrt(len(mine)) for each in (values, changes)]
            found.append(OverSeeds(tuple(x for x, *_ in mine), mean(values), errors[0], mean(changes), errors[1]))
    return tuple(found)


def _but_for_the_seed(run: FinishedRun) -> str:
    settings: dict[str, Any] = {**run.config.get("settings", {}), "seed": None}
    command = {name: value for name, value in run.command.items() if name not in (*vars(Settings()), "out", "seed")}
    same = {name: run.config.get(name) for name in ("original", "weights", "start")}
    return repr(sorted({**settings, **command, **same}.items(), key=lambda pair: pair[0]))
