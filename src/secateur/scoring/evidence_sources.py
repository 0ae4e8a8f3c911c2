"""Where the evidence of the metrics comes from: one function for each kind that a metric can need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.base.batches import Batches
from secateur.base.distributed import processes
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Indices
from secateur.errors import ScoreError
from secateur.measuring.quality_sums import unpack_for
from secateur.measuring.tasks import Task, is_classification, task_of
from secateur.scoring.collect import collect
from secateur.scoring.contributions import contributions
from secateur.scoring.discrimination import collect_discrimination
from secateur.scoring.evidence import Bare, Channels, Filters
from secateur.scoring.gradients import collect_gradients
from secateur.scoring.importance import collect_importance
from secateur.scoring.map_pass import MapRequest, collect_maps
from secateur.scoring.metric_choice import ChosenMetric
from secateur.scoring.metrics import METRICS, UNMERGED, Need
from secateur.scoring.reader_inputs import SHOWN, HasSeenInputs, SeenInputs, collect_reader_inputs
from secateur.scoring.sampling import Sample
from secateur.scoring.settings import GIB, ScoreSettings
from secateur.scoring.statistics import Statistics
from secateur.scoring.weights import filters, reader_norms, scales

log = logging.getLogger(__name__)
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
