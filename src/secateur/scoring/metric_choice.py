"""The metrics that the caller asks for, with their options.

A metric is a name, a name with options as in `gsd:ridge=0.5` or `gsd:tap=before_activation`, or the caller's own
function. "all" stands for every metric in the registry.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from secateur.base.distributed import processes
from secateur.base.registry import guessed
from secateur.errors import ScoreError
from secateur.scoring.metrics import METRICS, UNMERGED, Metric
from secateur.scoring.settings import TAPS, ScoreSettings, Where

log = logging.getLogger(__name__)

OwnMetric = Callable[..., Any]  # (Channels, **options) -> one number per channel: a tensor, an array or a list
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
        return f"{self.metric.needs}-{self.tap}" if _has_tap(self.metric) else self.metric.needs

    @property
    def is_sampled(self) -> bool:
        """Whether its scores depend on the seed even if all images are used."""
        return self.metric.needs in (*UNMERGED, "nothing")


AnyMetric = str | OwnMetric | ChosenMetric


def choose_metrics(
    metrics: Sequence[AnyMetric], settings: ScoreSettings | None = None, options: Mapping[str, Any] | None = None
) -> list[ChosenMetric]:
    """The metrics, each once. `options` are given to every metric that has them.

    An unknown name or an option that no metric has is an error.
    """
    settings, options = settings or ScoreSettings(), options or {}
    names: list[AnyMetric] = []
    for metric in metrics:
        names += all_metrics() if metric == ALL else [metric]
    found = {one.name: one for one in (_chosen(name, settings.tap) for name in names)}
    if not found:
        raise ScoreError("no metric is given; 'all' takes every metric")
    unknown = options.keys() - {key for one in found.values() for key in _accepted(one.metric, options)}
    if unknown:
        raise _no_option(list(found.values()), min(unknown))
    for one in found.values():
        _check_ridge({**options, **one.options})
    shared = {**options} if settings.seed is None else {"seed": settings.seed, **options}
    return [replace(one, options={**_accepted(one.metric, shared), **one.options}) for one in found.values()]


def all_metrics() -> list[str]:
    """The names that "all" stands for. Metrics whose evidence several processes cannot merge are left out there."""
    if processes() == 1:
        return list(METRICS)
    left_out = [name for name, metric in METRICS.items() if metric.needs in UNMERGED]
    log.warning("%s are left out: they need all images in one process", ", ".join(left_out))
    return [name for name in METRICS if name not in left_out]


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


def _chosen(metric: AnyMetric, tap: Where) -> ChosenMetric:
    if isinstance(metric, ChosenMetric):
        return metric
    if not isinstance(metric, str):
        if not callable(metric):
            raise ScoreError(f"a metric must be a name or a function, got {type(metric).__name__}")
        name = getattr(metric, "__name__", type(metric).__name__)
        return ChosenMetric(name, Metric(name=name, needs="moments", score=metric), tap=tap)
    name, *parts = metric.split(":")
    found = METRICS.find(name)
    options = parse_options(parts)
    if "tap" in options and _has_tap(found):
        tap = _checked_tap(options.pop("tap"))
    chosen = ChosenMetric(metric, found, options, tap)
    unknown = options.keys() - _accepted(found, options).keys()
    if unknown:
        raise _no_option([chosen], min(unknown))
    return chosen


def _check_ridge(options: Mapping[str, Any]) -> None:
    ridge = options.get("ridge", 0.0)
    if isinstance(ridge, bool) or not isinstance(ridge, int | float) or not 0 <= ridge < math.inf:
        raise ScoreError(f"ridge must be a number of at least 0, got {ridge!r}")


def _checked_tap(tap: Any) -> Where:
    if tap not in TAPS:
        raise ScoreError(f"tap must be {' or '.join(TAPS)}, got {tap!r}")
    return tap  # type: ignore[no-any-return]


def _has_tap(metric: Metric) -> bool:
    return metric.needs in ("moments", "maps")


def _accepted(metric: Metric, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the metric's function takes: all of its arguments but the first."""
    parameters = list(inspect.signature(metric.score).parameters.values())[1:]
    names = {parameter.name for parameter in parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return {key: value for key, value in options.items() if key != "seed" or key in names}
    return {key: value for key, value in options.items() if key in names}


def _no_option(chosen: Sequence[ChosenMetric], option: str) -> ScoreError:
    known: dict[str, None] = {}
    for one in chosen:
        parameters = list(inspect.signature(one.metric.score).parameters)[1:]
        known |= dict.fromkeys([*parameters, *(["tap"] if _has_tap(one.metric) else [])])
    names = ", ".join(one.metric.name for one in chosen)
    return ScoreError(
        f"{names} has no option {option!r}{guessed(option, known)}; available: {', '.join(known) or 'none'}"
    )
