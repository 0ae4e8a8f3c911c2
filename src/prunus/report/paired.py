"""Runs of a comparison tested in pairs on the same images, and their means over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from prunus.errors import RunError
from prunus.report.page import Cell, Table, points
from prunus.report.read import FinishedRun
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
    """Each run against its original, and every two runs, by the same quality on the same images."""
    pairs = []
    for letter, run in runs:
        if run.predictions is not None and not run.start.get("earlier"):
            pairs.append(_pair(ORIGINAL, run, letter, run, "before"))
    every = itertools.combinations(runs, 2) if len(runs) <= MOST_RUNS else ((runs[0], each) for each in runs[1:])
    pairs += [_pair(a, one, b, two) for (a, one), (b, two) in every]
    return tuple(pairs)


def _pair(a: str, one: FinishedRun, b: str, two: FinishedRun, side: str = "after") -> Pair:
    first, second, task, reason = one.predictions, two.predictions, two.settings.task, ""
    if first is None or second is None:
        return Pair(a, b, None, "the quality of single images is not known (a user-provided evaluation)")
    facts = [(run.config.get("data") or {}).get(first.part) for run in (one, two)]
    is_mean = second.of["after"].values.ndim == 1
    if one.summary.quality != two.summary.quality:
        reason = "they are measured by different qualities"
    elif first.part != second.part:
        reason = "one has test images and the other only held-out images"
    elif not same_images(*facts):
        reason = "they were measured on different images"
    elif not is_mean and task is not None and task not in TASKS:
        reason = f"the task {task} is user-provided, and its quality is no mean over images"
    if reason:
        return Pair(a, b, None, reason)
    try:
        value = None if is_mean else task_of(task).measured.value
        return Pair(a, b, paired_test(first.of[side], second.of["after"], value))
    except RunError as error:
        return Pair(a, b, None, str(error))


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
        shown = f"{points(test.difference, quality)} ±{error}"
        difference = Cell(shown, test.difference, "± standard error of the difference")
        better = Cell(counts, float(test.better or 0), "images where only the one is better, and only the other")
        images = Cell(f"{test.num_images:,}", float(test.num_images))
        p = Cell(test.p_text, test.p, repr(test.p))
        rows.append([Cell(who, place, title), difference, better, images, Cell(test.test, 0.0), p])
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
    """The groups of runs that differ in nothing but the seed, from (letter, run, quality before and after)."""
    groups: dict[str, list[tuple[str, float, float]]] = {}
    for letter, run, before, after in runs:
        settings = {**run.config.get("settings", {}), "seed": None}
        command = {name: value for name, value in run.command.items() if name not in (*vars(Settings()), "out", "seed")}
        network = {name: run.config.get(name) for name in ("original", "weights", "start")}
        same = repr(sorted({**settings, **command, **network}.items(), key=lambda pair: pair[0]))
        groups.setdefault(same, []).append((letter, before, after))
    means = []
    for group in groups.values():
        if len(group) > 1:
            values, changes = [after for *_, after in group], [after - before for _, before, after in group]
            errors = [stdev(each) / math.sqrt(len(group)) for each in (values, changes)]
            means.append(OverSeeds(tuple(x for x, *_ in group), mean(values), errors[0], mean(changes), errors[1]))
    return tuple(means)


def seed_table(groups: Sequence[OverSeeds], qualities: Mapping[str, QualityText]) -> Table | None:
    """The means as a table of the page; None if there are none. qualities: those of the runs by letter."""
    rows = []
    for place, group in enumerate(groups):
        text, number = qualities[group.letters[0]], len(group.letters)
        quality = f"{text.shown(group.quality)} ±{text.number(group.standard_error)}"
        change = f"{points(group.change, text)} ±{text.number(group.change_error)}"
        cells = [Cell(", ".join(group.letters), place), Cell(f"{number}", number)]
        rows.append([*cells, Cell(quality, group.quality), Cell(change, group.change)])
    return Table("Means over seeds", ["runs", "seeds", "quality", "change"], rows, texts=(0,)) if rows else None
