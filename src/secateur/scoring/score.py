"""Scores of every channel by one metric, several or all, in as few passes over the data as they need."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from torch import Tensor

from secateur.base.batches import Batches
from secateur.base.distributed import processes
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Indices
from secateur.errors import ScoreError
from secateur.scoring.collect import collect
from secateur.scoring.data_pass import Progress
from secateur.scoring.evidence import Bare, Channels, Filters
from secateur.scoring.gradients import collect_gradients
from secateur.scoring.map_pass import GIB, Request, collect_maps
from secateur.scoring.metrics import METRICS, Metric
from secateur.scoring.reader_inputs import HasSeenInputs, collect_reader_inputs
from secateur.scoring.sampling import Sample
from secateur.scoring.scores import Scores, Vector, checked
from secateur.scoring.statistics import Statistics
from secateur.scoring.tap_location import Where
from secateur.scoring.weights import filters, reader_norms, scales

log = logging.getLogger(__name__)

Source = Batches | Statistics | HasSeenInputs  # what scores are computed from
OwnMetric = Callable[..., Any]  # (Channels, **options) -> one number a channel: a tensor, an array or a list


@dataclass(frozen=True)
class Job:
    """What the passes need to know."""

    graph: ChannelGraph
    loader: Source | None
    images: int | None
    tap: Where
    sample: int | None
    memory: int
    seed: int | None
    progress: Progress | None

    def batches(self, metrics: Sequence[Metric]) -> Batches:
        """The loader; an error that names the metrics where there is none."""
        if self.loader is None or isinstance(self.loader, Statistics | HasSeenInputs):
            names = ", ".join(metric.name for metric in metrics)
            raise ScoreError(f"{names} cannot be computed without images: pass a loader of (images, labels)")
        return self.loader


Part = tuple[str, Indices | None, Any]  # unit, which of its channels (None: all), the evidence on them


@overload
def score(
    graph: ChannelGraph,
    loader: Source | None,
    metric: Literal["all"],
    images: int | None = None,
    *,
    tap: Where = "reader",
    sample: int | None = 2000,
    memory: int = 2 * GIB,
    seed: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Scores]: ...


@overload
def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: OwnMetric | str = "gsd",
    images: int | None = None,
    *,
    tap: Where = "reader",
    sample: int | None = 2000,
    memory: int = 2 * GIB,
    seed: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Scores: ...


def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: OwnMetric | str = "gsd",
    images: int | None = None,
    *,
    tap: Where = "reader",
    sample: int | None = 2000,
    memory: int = 2 * GIB,
    seed: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Scores | dict[str, Scores]:
    """What every channel of every unit is worth; higher means keep.

    loader: batches of (images, labels), tuples or dicts; or the Statistics of an earlier `collect`; or, for the metric
        `rebuilt`, the result of `repair_each`, which has made the pass already. Under torchrun each process passes its
        share, and all get the merged scores. Filter metrics need none.
    metric: a name, "all" for a dict of all of them, or your own function of a `Channels`, which gives one number a
        channel; a unit that is read at several places scores the maximum over them.
    images: a fresh stratified sample of so many images instead of all; `seed` makes it the same each time.
    tap: "reader" (the tensor that enters the readers) or "before_activation"; for moment and map metrics.
    sample, memory: images (class-balanced) and bytes for metrics that need whole maps, `di` and `mmd`. `sample` also
        limits the images of `rebuilt`.
    options: the metric's own, such as ridge=, rho=, sigma=.
    """
    chosen: Sequence[OwnMetric | str] = all_metrics() if metric == "all" else [metric]
    found = score_by(
        graph, loader, chosen, images, tap=tap, sample=sample, memory=memory, seed=seed, progress=progress, **options
    )
    return found if metric == "all" else next(iter(found.values()))


def all_metrics() -> list[str]:
    """The names that "all" stands for: every metric, but for those that several processes cannot merge."""
    if processes() == 1:
        return list(METRICS)
    left_out = [name for name, metric in METRICS.items() if metric.needs in ("maps", "reader_inputs")]
    log.warning("%s are left out: they need all images in one process", ", ".join(left_out))
    return [name for name in METRICS if name not in left_out]


def score_by(
    graph: ChannelGraph,
    loader: Source | None,
    metrics: Sequence[OwnMetric | str],
    images: int | None = None,
    *,
    tap: Where = "reader",
    sample: int | None = 2000,
    memory: int = 2 * GIB,
    seed: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Scores]:
    """Scores by several metrics, name -> Scores. Those that need the same pass share it."""
    job = Job(graph, loader, images, tap, sample, memory, seed, progress)
    chosen = [_found(metric) for metric in metrics]
    accepted = {metric.name: _accepted(metric, options, seed) for metric in chosen}
    unknown = options.keys() - {name for each in accepted.values() for name in each}
    if unknown:
        names = ", ".join(metric.name for metric in chosen)
        raise ScoreError(f"{names} has no option {min(unknown)!r}; its own are: {_own_options(chosen) or 'none'}")
    results: dict[str, Scores] = {}
    for need in _SOURCES:
        group = [metric for metric in chosen if metric.needs == need]
        if group:
            results |= _scored(job, need, group, accepted)
    return {metric.name: results[metric.name] for metric in chosen}


def _scored(
    job: Job, need: str, metrics: Sequence[Metric], options: Mapping[str, Mapping[str, Any]]
) -> dict[str, Scores]:
    """Scores by metrics that need the same evidence."""
    source = _SOURCES[need](job, metrics)
    names = job.graph.units if source.units is None else source.units
    widths = {name: job.graph.units[name].width for name in names}
    values = {m.name: {unit: np.full(width, -np.inf) for unit, width in widths.items()} for m in metrics}
    for unit, channels, evidence in source.parts:
        where = slice(None) if channels is None else channels
        for metric in metrics:
            vector = values[metric.name][unit]
            fresh = _vector(metric.score(evidence, **options[metric.name]), metric.name, unit, len(vector[where]))
            vector[where] = np.fmax(vector[where], fresh) if np.isfinite(fresh).all() else fresh
    return {
        m.name: Scores(m.name, checked(values[m.name], m.name, widths), source.images, options[m.name], source.notes)
        for m in metrics
    }


# ------------------------------------------------------------------------------------------- where evidence comes from


@dataclass(frozen=True)
class Evidence:
    """Evidence unit by unit, and what it was made of."""

    parts: Iterator[Part]
    images: int = 0
    units: Sequence[str] | None = None  # those that it has evidence on; None: all
    notes: tuple[str, ...] = ()


def _from_moments(job: Job, metrics: Sequence[Metric]) -> Evidence:
    statistics = (
        job.loader
        if isinstance(job.loader, Statistics)
        else collect(
            job.graph, job.batches(metrics), images=job.images, tap=job.tap, seed=job.seed, progress=job.progress
        )
    )

    def parts() -> Iterator[Part]:
        for name, taps in statistics.units.items():
            for tap in taps:
                norms = reader_norms(job.graph, tap.readers, job.graph.units[name].width)[tap.channels]
                yield name, tap.channels, Channels(name, tap.moments, norms)

    return Evidence(parts(), statistics.images, notes=statistics.notes)


def _from_maps(job: Job, metrics: Sequence[Metric]) -> Evidence:
    whole = any(metric.name != "di" for metric in metrics)
    request = Request(_sample_size(job), job.memory, whole, job.tap, job.seed, job.progress)
    images, units = collect_maps(job.graph, job.batches(metrics), request)
    return Evidence(((name, part.channels, part.maps) for name, found in units for part in found), images)


def _from_reader_inputs(job: Job, metrics: Sequence[Metric]) -> Evidence:
    if isinstance(job.loader, HasSeenInputs):
        seen = job.loader.seen
        if seen.graph is not job.graph:
            raise ScoreError("these inputs were seen in another graph: pass the graph that repair_each was given")
    elif processes() > 1:
        names = " and ".join(metric.name for metric in metrics)
        raise ScoreError(f"{names} needs all images in one process; score without torchrun")
    else:
        sample = Sample(job.batches(metrics), _sample_size(job), job.seed)
        seen = collect_reader_inputs(job.graph, sample.batches(), seed=job.seed or 0)
    return Evidence(((each.unit, None, each) for each in seen.evidence()), seen.num_images, list(seen.units()))


def _sample_size(job: Job) -> int | None:
    """Images for evidence that is costly for each image."""
    return job.sample if job.images is None else min(job.images, job.sample or job.images)


def _from_gradients(job: Job, metrics: Sequence[Metric]) -> Evidence:
    found = collect_gradients(job.graph, job.batches(metrics), images=job.images, seed=job.seed, progress=job.progress)
    images = next(iter(found.values())).images if found else 0
    return Evidence(((name, None, gradients) for name, gradients in found.items()), images)


def _from_filters(job: Job, metrics: Sequence[Metric]) -> Evidence:
    units = job.graph.units.items()
    return Evidence(
        (name, None, Filters(name, filters(job.graph, unit), scales(job.graph, unit))) for name, unit in units
    )


def _from_nothing(job: Job, metrics: Sequence[Metric]) -> Evidence:
    return Evidence((name, None, Bare(name, unit.width)) for name, unit in job.graph.units.items())


_SOURCES: Mapping[str, Callable[[Job, Sequence[Metric]], Evidence]] = {
    "filters": _from_filters,
    "nothing": _from_nothing,
    "moments": _from_moments,
    "gradients": _from_gradients,
    "maps": _from_maps,
    "reader_inputs": _from_reader_inputs,
}


# ------------------------------------------------------------------------------------------- names, options and results


def _found(metric: OwnMetric | str) -> Metric:
    """The metric of a name, or a user's own function as one."""
    if isinstance(metric, str):
        return METRICS.find(metric)
    if not callable(metric):
        raise ScoreError(f"metric should be a name or a function, not {type(metric).__name__}")
    return Metric(name=getattr(metric, "__name__", type(metric).__name__), needs="moments", score=metric)


def _parameters(metric: Metric) -> Mapping[str, inspect.Parameter]:
    """The options that a metric's function takes: all of its arguments but the first."""
    return dict(list(inspect.signature(metric.score).parameters.items())[1:])


def _accepted(metric: Metric, options: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    taken = _parameters(metric)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return dict(options)
    mine = {name: value for name, value in options.items() if name in taken}
    if seed is not None and "seed" in taken:
        mine["seed"] = seed
    return mine


def _own_options(metrics: Sequence[Metric]) -> str:
    return ", ".join(dict.fromkeys(f"{name}=" for metric in metrics for name in _parameters(metric)))


def _vector(found: Any, metric: str, unit: str, channels: int) -> Vector:
    array = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found)
    if array.shape != (channels,):
        raise ScoreError(
            f"{metric} should give {channels} scores for unit {unit}, one a channel, and gives {list(array.shape)}"
        )
    return array.astype(np.float64)
