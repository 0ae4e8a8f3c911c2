"""Scores of every channel by one metric, several or all, in as few passes over the data as they need."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import check_graph
from prunus.graph.units import Indices
from prunus.scoring.choice import ALL, ChosenMetric, UserMetric, choose_metrics, without_classes
from prunus.scoring.collect import Statistics, collect
from prunus.scoring.evidence import Channels, Filters, filters, reader_norms, scales
from prunus.scoring.gradients import collect_discrimination, collect_gradients, collect_importance
from prunus.scoring.maps import collect_maps
from prunus.scoring.metrics import DEFAULT_METRIC, METRICS, UNMERGED, ScoreSettings, Where, check_fits
from prunus.scoring.passes import CHUNK, Sample
from prunus.scoring.reader_inputs import HasSeenInputs, SeenInputs, collect_reader_inputs, contributions
from prunus.scoring.scores import Scores
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches
from prunus.util.options import check, maps_memory
from prunus.util.processes import processes
from prunus.util.progress import Progress, shown, steps

logger = logging.getLogger(__name__)

Source = Batches | Tensor | Statistics | HasSeenInputs  # what scores are computed from
SHOWN = 5  # units in a warning


@overload
def score(
    graph: ChannelGraph,
    loader: Source | None,
    metric: Literal["all"] | list[Any] | tuple[Any, ...],
    num_images: int | None = None,
    **settings_and_options: Any,
) -> dict[str, Scores]: ...
@overload
def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: UserMetric | str = DEFAULT_METRIC,
    num_images: int | None = None,
    **settings_and_options: Any,
) -> Scores: ...
def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: UserMetric | str | list[Any] | tuple[Any, ...] = DEFAULT_METRIC,
    num_images: int | None = None,
    *,
    tap: Where = "reader",
    num_map_images: int | None = 2000,
    memory: str | int = "2G",
    seed: int | None = None,
    task: Task | str | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Scores | dict[str, Scores]:
    """Score every channel of every unit; higher means keep.

    Args:
        graph: The traced network.
        loader: Batches of (images, labels), tuples or dicts, or of images alone where no labels are needed, or a tensor
            of all these images; or the Statistics of an earlier `collect`; or, for "rebuilt", "thinet" and "cp", the
            result of `repair_each`, whose pass is used again. Under torchrun each process passes its share of the
            images, and all get the merged scores. Metrics of the weights alone need no loader.
        metric: A name; a name with options, as in "gsd:ridge=0.5"; a user-provided function of a `Channels`, which
            returns one number per channel. A list of these gives a dict of Scores by name, "all" that of all metrics;
            metrics that need the same pass over the images share it. If a unit is read at several places, its score
            is the maximum over them. The default is that of Algorithm 1 in `compress`, too.
        num_images: A new stratified sample of this many images instead of all images; `seed` makes it reproducible.
        tap: "reader" scores the tensor that enters the readers, "before_activation" the tensor in front of the
            activation before them; for metrics of activations.
        num_map_images: Number of images for metrics that need whole feature maps (`di`, `mmd`, `hrank`, `chip`), a
            class-balanced sample if there are labels; and for `rebuilt`, `thinet`, `cp`, `nisp` and `dcp`.
        memory: For whole feature maps, such as "4G" or a number of bytes.
        seed: Seed of the sample and of random scores; a new sample each time if None.
        task: A `Task` or the name of one, if the network is no classifier (docs/tasks.md).
        progress: False shows nothing; a function is called with the batches done and the number of batches.
        options: Options of the metric, such as ridge=, rho=, sigma=.

    Returns:
        The Scores of one metric, or a dict of Scores by name for a list or "all".
    """
    check_graph(graph)
    settings = ScoreSettings(num_images, tap, num_map_images, str(memory), seed, task)
    check(settings, ScoreError)
    several = isinstance(metric, list | tuple) or metric == ALL
    metrics = list(metric) if isinstance(metric, list | tuple) else [metric]
    chosen = choose_metrics(metrics, options, tap=tap, seed=seed)
    if ALL in metrics:
        chosen = without_classes(chosen, task)
    if not graph.units:
        name = type(graph.model).__name__
        raise ScoreError(f"{name} has no channels that can be removed, so there is nothing to score (see graph.frozen)")
    source: Any = torch.split(loader, CHUNK) if isinstance(loader, Tensor) else loader
    groups: dict[str, list[ChosenMetric]] = {}
    for one in chosen:
        groups.setdefault(one.shares, []).append(one)
    results: dict[str, Scores] = {}
    with shown(progress, steps("score")) as report:
        for group in groups.values():
            results |= _scored(graph, group, _gather(graph, source, settings, group, report))
    scores = {one.name: results[one.name] for one in chosen}
    return scores if several else scores[chosen[0].name]


Part = tuple[str, Indices | None, Any]  # unit, which of its channels (None: all), the evidence on them


@dataclass(frozen=True)
class _Evidence:
    """The evidence that some metrics share, unit by unit, and what it was computed from."""

    parts: Iterable[Part]
    num_images: int = 0
    units: Sequence[str] | None = None  # the units that have evidence; None: all
    notes: tuple[str, ...] = ()


def _scored(graph: ChannelGraph, metrics: Sequence[ChosenMetric], evidence: _Evidence) -> dict[str, Scores]:
    names = graph.units if evidence.units is None else evidence.units
    values = {one.name: {unit: np.full(graph.units[unit].width, -np.inf) for unit in names} for one in metrics}
    for unit, channels, each in evidence.parts:
        where = slice(None) if channels is None else channels
        for one in metrics:
            vector = values[one.name][unit]
            result = one.metric.score(each, **one.options)
            array = result.detach().cpu().numpy() if isinstance(result, Tensor) else np.asarray(result)
            if array.shape != (count := len(vector[where]),):
                raise ScoreError(
                    f"{one.name} must give unit {unit} {count} scores, one per channel, got the shape "
                    f"{list(array.shape)}"
                )
            new = array.astype(np.float64)
            vector[where] = np.fmax(vector[where], new) if np.isfinite(new).all() else new
    for metric, units in values.items():
        for unit, vector in units.items():
            if not np.isfinite(vector).all():
                channel = int(np.flatnonzero(~np.isfinite(vector))[0])
                raise ScoreError(
                    f"{metric} gives channel {channel} of unit {unit} the score {vector[channel]}; "
                    "a ridge above 0 keeps metrics that divide by variances finite"
                )
    return {
        one.name: Scores(one.metric.name, values[one.name], evidence.num_images, one.options, evidence.notes)
        for one in metrics
    }


def _gather(
    graph: ChannelGraph,
    source: Batches | Statistics | HasSeenInputs | None,
    settings: ScoreSettings,
    metrics: Sequence[ChosenMetric],
    progress: Progress,
) -> _Evidence:
    need, tap, task = metrics[0].metric.needs, metrics[0].tap, task_of(settings.task)
    names = ", ".join(one.name for one in metrics)
    reads = need in ("reader_inputs", "contributions")
    if need in UNMERGED and processes() > 1 and not (reads and isinstance(source, HasSeenInputs)):
        verb = "needs" if len(metrics) == 1 else "need"
        raise ScoreError(f"{names} {verb} all images in one process; score without torchrun")
    if need == "nothing":
        return _Evidence((name, None, unit) for name, unit in graph.units.items())
    if need == "filters":
        return _Evidence(
            (name, None, Filters(name, filters(graph, unit), scales(graph, unit))) for name, unit in graph.units.items()
        )
    separating = [one for one in metrics if one.metric.needs_classes]
    check_fits((one.metric for one in metrics), task)
    if need == "moments" and isinstance(source, Statistics):
        return _of_moments(graph, source)
    if reads and isinstance(source, HasSeenInputs):
        if source.seen.graph is not graph:
            raise ScoreError("the inputs were seen in another graph: pass the graph that was given to repair_each")
        return _of_readers(source.seen, need, progress)
    if source is None or isinstance(source, Statistics | HasSeenInputs):
        raise ScoreError(f"{names} cannot be computed without images: pass a loader of (images, labels)")
    how: dict[str, Any] = {"seed": settings.seed, "task": task, "progress": progress}
    if need == "moments":
        # A user-provided metric gets moments of each class where the task has classes.
        by_class = any(one.metric.name in METRICS or task.classes is not None for one in separating)
        statistics = collect(graph, source, num_images=settings.num_images, tap=tap, classes=by_class, **how)
        return _of_moments(graph, statistics)
    if need == "gradients":
        gradients = collect_gradients(graph, source, num_images=settings.num_images, **how)
        num_images = next(iter(gradients.values())).num_images
        return _Evidence(((name, None, each) for name, each in gradients.items()), num_images)
    if need == "maps":
        size, memory = settings.sample_size, maps_memory(settings.memory)
        saturating = [one.name for one in metrics if one.metric.saturates]
        how |= {"tap": tap, "classes": bool(separating), "saturating": saturating}
        num_images, maps = collect_maps(graph, source, size, memory, **how)
        return _Evidence(((name, *part) for name, parts in maps for part in parts), num_images)
    # For the other metrics an image is costly, so they get a sample.
    sample = Sample(source, settings.sample_size, settings.seed, task=task).batches()
    images = ((unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(sample))
    if reads:
        seen = collect_reader_inputs(graph, images, seed=settings.seed or 0, progress=progress)
        return _of_readers(seen, need, progress)
    if need == "importance":
        num_images, units = collect_importance(graph, images, progress=progress)
    else:
        num_images, units = collect_discrimination(graph, sample, task, progress=progress)
    return _Evidence(((name, None, each) for name, each in units.items()), num_images)


def _of_moments(graph: ChannelGraph, statistics: Statistics) -> _Evidence:
    def parts() -> Iterator[Part]:
        for unit, taps in statistics.units.items():
            for tap in taps:
                norms = reader_norms(graph, tap.readers, graph.units[unit].width)
                yield unit, tap.channels, Channels(unit, tap.moments, norms[tap.channels])

    return _Evidence(parts(), statistics.num_images, notes=statistics.notes)


def _of_readers(seen: SeenInputs, need: str, progress: Progress) -> _Evidence:
    """What was seen of the units' readers. The log names the units of which nothing was seen."""
    units = list(seen.units())
    others = [name for name in seen.graph.units if name not in units and name not in seen.known]
    why = "the layers that read them are called several times or by keyword, or are no linear map of their input"
    if not units and not seen.known:
        raise ScoreError(f"no unit can be scored by its readers: {why}; use a metric of activations or weights")
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        logger.warning("no scores for %s%s, which stay as they are: %s", ", ".join(others[:SHOWN]), more, why)
    every: Iterable[Any] = seen.evidence() if need == "reader_inputs" else contributions(seen)

    def parts() -> Iterator[Part]:
        for done, each in enumerate(every):
            progress(done, len(units))
            yield each.unit, None, each
        progress(len(units), len(units))

    return _Evidence(parts(), seen.num_images, units)
