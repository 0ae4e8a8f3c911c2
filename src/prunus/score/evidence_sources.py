"""Where the evidence of the metrics comes from: one function for each kind that a metric can need."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Indices
from prunus.score.collect import collect
from prunus.score.evidence import Bare, Channels, Filters, filters, reader_norms, scales
from prunus.score.gradients import collect_discrimination, collect_gradients
from prunus.score.importance import collect_importance
from prunus.score.maps import MapRequest, collect_maps
from prunus.score.metrics import METRICS, UNMERGED, Metric, Need
from prunus.score.passes import Sample
from prunus.score.reader_inputs import SHOWN, HasSeenInputs, SeenInputs, collect_reader_inputs, contributions
from prunus.score.scores import GIB, TAPS, ScoreSettings, Where
from prunus.score.statistics import Statistics
from prunus.tasks import Task, is_classification, task_of
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches
from prunus.util.processes import processes
from prunus.util.progress import Progress
from prunus.util.registry import guessed

# The metrics that the caller asks for, with their options.

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


CLASSIFICATION_ONLY = ("maps", "discrimination")  # of metrics that need classes: one class per image

Source = Batches | Statistics | HasSeenInputs  # what scores are computed from
Part = tuple[str, Indices | None, Any]  # unit, which of its channels (None: all), the evidence on them


@dataclass(frozen=True)
class ScoreRequest:
    """What a pass needs to know."""

    graph: ChannelGraph
    source: Source | None
    settings: ScoreSettings
    progress: Progress | None


@dataclass(frozen=True)
class Gathered:
    """Evidence unit by unit, and what it was computed from."""

    parts: Iterator[Part]
    num_images: int = 0
    units: Sequence[str] | None = None  # the units that have evidence; None: all
    notes: tuple[str, ...] = ()


def gather_evidence(need: Need, request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    """Evidence for metrics that share a pass, which `need` the same kind."""
    reuses = need in ("reader_inputs", "contributions") and isinstance(request.source, HasSeenInputs)
    if need in UNMERGED and processes() > 1 and not reuses:
        verb = "needs" if len(metrics) == 1 else "need"
        raise ScoreError(f"{_names(metrics)} {verb} all images in one process; score without torchrun")
    return _SOURCES[need](request, metrics)


def _from_moments(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    graph, settings = request.graph, request.settings
    statistics = request.source
    if not isinstance(statistics, Statistics):
        statistics = collect(
            graph,
            _batches(request, metrics),
            num_images=settings.num_images,
            tap=metrics[0].tap,
            seed=settings.seed,
            task=settings.task,
            classes=any(one.metric.needs_classes and not _is_own(one, settings) for one in metrics),
            progress=request.progress,
        )

    def parts() -> Iterator[Part]:
        for name, taps in statistics.units.items():
            for tap in taps:
                norms = reader_norms(graph, tap.readers, graph.units[name].width)[tap.channels]
                yield name, tap.channels, Channels(name, tap.moments, norms)

    return Gathered(parts(), statistics.num_images, notes=statistics.notes)


def _from_maps(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    settings = request.settings
    separating = [one for one in metrics if one.metric.needs_classes]
    if separating:
        _refuse_other_tasks(request, separating)
    wanted = MapRequest(
        settings.sample_size,
        int(settings.memory_gib * GIB),
        whole=not all(one.metric.takes_scatter for one in metrics),
        tap=metrics[0].tap,
        seed=settings.seed,
        classes=bool(separating),
        task=task_of(settings.task),
        progress=request.progress,
        saturating=tuple(one.name for one in metrics if one.metric.saturates),
    )
    num_images, units = collect_maps(request.graph, _batches(request, metrics), wanted)
    return Gathered(((name, part.channels, part.maps) for name, found in units for part in found), num_images)


def _from_gradients(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    found = collect_gradients(
        request.graph,
        _batches(request, metrics),
        num_images=request.settings.num_images,
        seed=request.settings.seed,
        task=request.settings.task,
        progress=request.progress,
    )
    num_images = next(iter(found.values())).num_images if found else 0
    return Gathered(((name, None, gradients) for name, gradients in found.items()), num_images)


def _from_reader_inputs(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    seen = _seen(request, metrics)
    return Gathered(((each.unit, None, each) for each in seen.evidence()), seen.num_images, _units_of(seen))


def _from_contributions(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    seen = _seen(request, metrics)
    return Gathered(((each.unit, None, each) for each in contributions(seen)), seen.num_images, _units_of(seen))


def _units_of(seen: SeenInputs) -> list[str]:
    """The units whose readers were seen. The log names the others, which stay as they are."""
    found = seen.units()
    others = [name for name in seen.graph.units if name not in found]
    why = "the layers that read them are called several times or by keyword, or are no linear map of their input"
    if not found:
        raise ScoreError(f"no unit can be scored by its readers: {why}; use a metric of activations or weights")
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        log.warning("no scores for %s%s, which stay as they are: %s", ", ".join(others[:SHOWN]), more, why)
    return list(found)


def _seen(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> SeenInputs:
    if not isinstance(request.source, HasSeenInputs):
        return collect_reader_inputs(request.graph, _images(request, metrics), seed=request.settings.seed or 0)
    seen = request.source.seen
    if seen.graph is not request.graph:
        raise ScoreError("the inputs were seen in another graph: pass the graph that was given to repair_each")
    return seen


def _from_importance(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    found = collect_importance(request.graph, _images(request, metrics), progress=request.progress)
    return Gathered(((each.unit, None, each) for each in found[1]), found[0])


def _from_discrimination(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Gathered:
    _refuse_other_tasks(request, metrics)
    found = collect_discrimination(request.graph, _sample(request, metrics), progress=request.progress)
    return Gathered(((each.unit, None, each) for each in found[1]), found[0])


def _from_filters(request: ScoreRequest, _: Sequence[ChosenMetric]) -> Gathered:
    graph = request.graph
    units = graph.units.items()
    return Gathered((name, None, Filters(name, filters(graph, unit), scales(graph, unit))) for name, unit in units)


def _from_nothing(request: ScoreRequest, _: Sequence[ChosenMetric]) -> Gathered:
    return Gathered((name, None, Bare(name, unit.width)) for name, unit in request.graph.units.items())


_SOURCES: Mapping[Need, Callable[[ScoreRequest, Sequence[ChosenMetric]], Gathered]] = {
    "filters": _from_filters,
    "nothing": _from_nothing,
    "moments": _from_moments,
    "gradients": _from_gradients,
    "maps": _from_maps,
    "reader_inputs": _from_reader_inputs,
    "contributions": _from_contributions,
    "importance": _from_importance,
    "discrimination": _from_discrimination,
}


def _batches(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Batches:
    """The loader; an error that names the metrics if there is none."""
    if request.source is None or isinstance(request.source, Statistics | HasSeenInputs):
        raise ScoreError(f"{_names(metrics)} cannot be computed without images: pass a loader of (images, labels)")
    return request.source


def _sample(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Batches:
    """The images for metrics for which an image is costly."""
    settings = request.settings
    return Sample(
        _batches(request, metrics), settings.sample_size, settings.seed, task=task_of(settings.task)
    ).batches()


class _ImagesAlone:
    """The batches of a loader without their labels."""

    def __init__(self, loader: Batches, task: Task) -> None:
        self._loader, self._task = loader, task

    def __iter__(self) -> Iterator[tuple[Any]]:
        for number, batch in enumerate(self._loader):
            yield (unpack_for(self._task, batch, number, labelled=False)[0],)


def _images(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> Batches:
    """The same images, for metrics that need no labels."""
    return _ImagesAlone(_sample(request, metrics), task_of(request.settings.task))


def _refuse_other_tasks(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> None:
    task = task_of(request.settings.task)
    if not is_classification(task):
        raise ScoreError(
            f"{_names(metrics)}: only for classification, with one class per image, and the task is "
            f"{task.name or 'your own'}; use reader_energy, rebuilt or, if there are classes, gsd"
        )


def _is_own(one: ChosenMetric, settings: ScoreSettings) -> bool:
    """Whether it is a function of the user's own for a task without classes: it gets all images as one class."""
    return one.metric.name not in METRICS and task_of(settings.task).classes is None


def without_classes(metrics: list[ChosenMetric], settings: ScoreSettings) -> list[ChosenMetric]:
    """The metrics that the labels of the task allow: those that need classes are left out where there are none."""
    task = task_of(settings.task)
    if is_classification(task):
        return metrics
    kept = [
        one
        for one in metrics
        if not one.metric.needs_classes
        or (one.metric.needs not in CLASSIFICATION_ONLY and (one.metric.needs != "moments" or task.classes))
    ]
    left_out = [one for one in metrics if one not in kept]
    elsewhere = ", ".join(one.name for one in left_out if one.metric.needs in CLASSIFICATION_ONLY)
    if elsewhere:
        log.warning("left out, only for classification with one class per image: %s", elsewhere)
    separating = ", ".join(one.name for one in left_out if one.metric.needs not in CLASSIFICATION_ONLY)
    if separating:
        log.warning("left out, because the task has no classes that they could separate: %s", separating)
    return kept


def _names(metrics: Sequence[ChosenMetric]) -> str:
    return ", ".join(one.name for one in metrics)
