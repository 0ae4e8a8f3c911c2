"""The metrics that a caller asks for: names with options, functions, or all of them."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prunus.errors import ScoreError
from prunus.scoring.metrics import METRICS, TAPS, UNMERGED, Metric, Where, function_metric, misfit
from prunus.tasks import Task, task_of
from prunus.util.processes import processes
from prunus.util.registry import guessed

logger = logging.getLogger(__name__)

UserMetric = Callable[..., Any]  # (Channels, **options) -> one number per channel: a tensor, an array or a list
ALL = "all"


@dataclass(frozen=True)
class ChosenMetric:
    """A metric with its options, under the name that the caller gave."""

    name: str
    metric: Metric
    options: Mapping[str, Any] = field(default_factory=dict)
    tap: Where = "reader"

    @property
    def shares(self) -> str:
        """The pass over the data that gives its evidence. Metrics with the same pass are scored together."""
        return f"{self.metric.needs}-{self.tap}" if has_tap(self.metric) else self.metric.needs

    @property
    def is_sampled(self) -> bool:
        """Whether its scores depend on the seed even if all images are used."""
        return self.metric.needs in (*UNMERGED, "nothing")


AnyMetric = str | UserMetric | ChosenMetric


def choose_metrics(
    metrics: Sequence[AnyMetric],
    options: Mapping[str, Any] | None = None,
    *,
    tap: Where = "reader",
    seed: int | None = None,
) -> list[ChosenMetric]:
    """The metrics, each once. Those that have them get `options` and `seed`; options in a metric's own name come first.

    ScoreError for an unknown name, or an option that no metric has.
    """
    options = options or {}
    every = list(METRICS)
    if ALL in metrics and processes() > 1:
        unmerged = [name for name, metric in METRICS.items() if metric.needs in UNMERGED]
        logger.warning("%s are left out: they need all images in one process", ", ".join(unmerged))
        every = [name for name in every if name not in unmerged]
    names: list[AnyMetric] = []
    for metric in metrics:
        names += every if metric == ALL else [metric]
    chosen = {one.name: one for one in (_chosen(name, tap) for name in names)}
    if not chosen:
        raise ScoreError("no metric is given; 'all' takes every metric")
    unknown = options.keys() - {key for one in chosen.values() for key in _accepted(one.metric, options)}
    if unknown:
        raise _no_option(list(chosen.values()), min(unknown))
    shared = {**options} if seed is None else {"seed": seed, **options}
    for one in chosen.values():
        given = {**options, **one.options}
        for name in ("ridge", "noise_ridge"):
            ridge = given.get(name, 0.0)
            if isinstance(ridge, bool) or not isinstance(ridge, int | float) or not 0 <= ridge < math.inf:
                raise ScoreError(f"{name} must be a number of at least 0, got {ridge!r}")
    return [replace(one, options={**_accepted(one.metric, shared), **one.options}) for one in chosen.values()]


def has_tap(metric: Metric) -> bool:
    """Whether a metric can look at tensors in front of activations."""
    return metric.needs in ("moments", "maps")


def parse_options(parts: Sequence[str]) -> dict[str, Any]:
    """['ridge=0.5', 'sigma=median'] as a dict; values that are numbers become numbers. Each may come once."""
    options: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ScoreError(f"an option of a metric must be NAME=VALUE, as in ridge=0.5, got {part!r}")
        if key in typed:
            raise ScoreError(f"the option {key} is given twice: {typed[key]!r} and {value!r}; give it once")
        typed[key] = value
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = value
    return options


def without_classes(metrics: list[ChosenMetric], task: Task | str | None) -> list[ChosenMetric]:
    """The metrics that the labels of the task allow: those that need classes are left out where there are none."""
    task, kept = task_of(task), []
    left_out: dict[str, list[str]] = {}  # reason -> names
    for one in metrics:
        if reason := misfit(one.metric, task):
            left_out.setdefault(reason, []).append(one.name)
        else:
            kept.append(one)
    for reason, names in left_out.items():
        logger.warning("%s left out: each %s", ", ".join(names), reason)
    return kept


def _chosen(metric: AnyMetric, tap: Where) -> ChosenMetric:
    if isinstance(metric, ChosenMetric):
        return metric
    if not isinstance(metric, str):
        if not callable(metric):
            raise ScoreError(f"a metric must be a name or a function, got {type(metric).__name__}")
        entry = function_metric(metric)
        return ChosenMetric(entry.name, entry, tap=tap)
    name, parts = METRICS.split_options(metric)
    entry = METRICS.find(name)
    options = parse_options(parts)
    if "tap" in options and has_tap(entry):
        tap = options.pop("tap")
        if tap not in TAPS:
            raise ScoreError(f"tap must be {' or '.join(TAPS)}, got {tap!r}")
    chosen = ChosenMetric(metric, entry, options, tap)
    unknown = options.keys() - _accepted(entry, options).keys()
    if unknown:
        raise _no_option([chosen], min(unknown))
    return chosen


def _accepted(metric: Metric, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the metric's function takes: all of its arguments but the first."""
    parameters = list(inspect.signature(metric.score).parameters.values())[1:]
    names = {parameter.name for parameter in parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return {key: value for key, value in options.items() if key in names or (takes_any and key != "seed")}


def _no_option(chosen: Sequence[ChosenMetric], option: str) -> ScoreError:
    known: dict[str, None] = {}
    for one in chosen:
        parameters = list(inspect.signature(one.metric.score).parameters)[1:]
        known |= dict.fromkeys([*parameters, *(["tap"] if has_tap(one.metric) else [])])
    names = ", ".join(one.metric.name for one in chosen)
    return ScoreError(
        f"{names} has no option {option!r}{guessed(option, known)}; available: {', '.join(known) or 'none'}"
    )
