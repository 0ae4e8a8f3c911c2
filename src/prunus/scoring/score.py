"""Scores of every channel by one metric, several or all, in as few passes over the data as they need."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from prunus.scoring.evidence import Channels, Filters, UnitWidth, filters, reader_norms, scales
from prunus.scoring.gradients import collect_discrimination, collect_gradients
from prunus.scoring.importance import collect_importance
from prunus.scoring.maps import MapRequest, collect_maps
from prunus.scoring.metrics import DEFAULT_METRIC, METRICS, UNMERGED
from prunus.scoring.passes import CHUNK, Sample
from prunus.scoring.reader_inputs import HasSeenInputs, SeenInputs, collect_reader_inputs, contributions
from prunus.scoring.scores import Scores, Vector
from prunus.scoring.settings import GIB, ScoreSettings, Where
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import unpack_for
from prunus.util.batches import Batches
from prunus.util.options import check
from prunus.util.processes import processes
from prunus.util.progress import Progress, shown, steps

log = logging.getLogger(__name__)

Source = Batches | Tensor | Statistics | HasSeenInputs  # what scores are computed from
SHOWN = 5  # units in a warning


@overload
def score(
    graph: ChannelGraph,
    loader: Source | None,
    metric: Literal["all"] | list[Any] | tuple[Any, ...],
    num_images: int | None = None,
    *,
    tap: Where = "reader",
    num_map_images: int | None = 2000,
    memory_gib: float = 2.0,
    seed: int | None = None,
    task: Task | str | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> dict[str, Scores]: ...


@overload
def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: UserMetric | str = DEFAULT_METRIC,
    num_images: int | None = None,
    *,
    tap: Where = "reader",
    num_map_images: int | None = 2000,
    memory_gib: float = 2.0,
    seed: int | None = None,
    task: Task | str | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Scores: ...


def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: UserMetric | str | list[Any] | tuple[Any, ...] = DEFAULT_METRIC,
    num_images: int | None = None,
    *,
    tap: Where = "reader",
    num_map_images: int | None = 2000,
    memory_gib: float = 2.0,
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
        memory_gib: Memory for whole feature maps in GiB.
        seed: Seed of the sample and of random scores; a new sample each time if None.
        task: A `Task` or the name of one, if the network is no classifier (docs/tasks.md).
        progress: False shows nothing; a function is called with the batches done and the number of batches.
        options: Options of the metric, such as ridge=, rho=, sigma=.

    Returns:
        The Scores of one metric, or a dict of Scores by name for a list or "all".
    """
    check_graph(graph)
    settings = ScoreSettings(num_images, tap, num_map_images, memory_gib, seed, task)
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
            results |= _scored(graph, group, _Evidence(graph, source, settings, group, report))
    scores = {one.name: results[one.name] for one in chosen}
    return scores if several else scores[chosen[0].name]


def _scored(graph: ChannelGraph, metrics: Sequence[ChosenMetric], evidence: _Evidence) -> dict[str, Scores]:
    """Scores by metrics that need the same evidence."""
    gathered = evidence.gather()
    names = graph.units if gathered.units is None else gathered.units
    values = {one.name: {unit: np.full(graph.units[unit].width, -np.inf) for unit in names} for one in metrics}
    for unit, channels, each in gathered.parts:
        where = slice(None) if channels is None else channels
        for one in metrics:
            vector = values[one.name][unit]
            new = _vector(one.metric.score(each, **one.options), one.name, unit, len(vector[where]))
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
        one.name: Scores(one.metric.name, values[one.name], gathered.num_images, one.options, gathered.notes)
        for one in metrics
    }


def _vector(scores: Any, metric: str, unit: str, channels: int) -> Vector:
    array = scores.detach().cpu().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    if array.shape != (channels,):
        raise ScoreError(
            f"{metric} must give unit {unit} {channels} scores, one per channel, got the shape {list(array.shape)}"
        )
    return array.astype(np.float64)


Part = tuple[str, Indices | None, Any]  # unit, which of its channels (None: all), the evidence on them


@dataclass(frozen=True)
class _Gathered:
    """Evidence unit by unit, and what it was computed from."""

    parts: Iterator[Part]
    num_images: int = 0
    units: Sequence[str] | None = None  # the units that have evidence; None: all
    notes: tuple[str, ...] = ()


@dataclass
class _Evidence:
    """Where the evidence of metrics that share a pass comes from: one method for each kind, named after it."""

    graph: ChannelGraph
    source: Batches | Statistics | HasSeenInputs | None
    settings: ScoreSettings
    metrics: Sequence[ChosenMetric]
    progress: Progress | None
    task: Task = field(init=False)

    def __post_init__(self) -> None:
        self.task = task_of(self.settings.task)

    def gather(self) -> _Gathered:
        """The evidence of the kind that the metrics need."""
        need = self.metrics[0].metric.needs
        reuses = need in ("reader_inputs", "contributions") and isinstance(self.source, HasSeenInputs)
        if need in UNMERGED and processes() > 1 and not reuses:
            verb = "needs" if len(self.metrics) == 1 else "need"
            raise ScoreError(f"{_names(self.metrics)} {verb} all images in one process; score without torchrun")
        gathered: _Gathered = getattr(self, f"_{need}")()
        return gathered

    def _moments(self) -> _Gathered:
        statistics, settings, graph = self.source, self.settings, self.graph
        if not isinstance(statistics, Statistics):
            statistics = collect(
                graph,
                self._batches(),
                num_images=settings.num_images,
                tap=self.metrics[0].tap,
                seed=settings.seed,
                task=self.task,
                classes=any(map(self._separates, self.metrics)),
                progress=self.progress,
            )
        parts: Iterator[Part] = (
            (unit, tap.channels, Channels(unit, tap.moments, norms[tap.channels]))
            for unit, taps in statistics.units.items()
            for tap in taps
            for norms in [reader_norms(graph, tap.readers, graph.units[unit].width)]
        )
        return _Gathered(parts, statistics.num_images, notes=statistics.notes)

    def _separates(self, one: ChosenMetric) -> bool:
        """Whether a metric gets moments of each class. A user-provided one does where the task has classes."""
        return one.metric.needs_classes and (one.metric.name in METRICS or self.task.classes is not None)

    def _maps(self) -> _Gathered:
        settings = self.settings
        separating = [one for one in self.metrics if one.metric.needs_classes]
        if separating:
            self._refuse_other_tasks(separating)
        request = MapRequest(
            settings.sample_size,
            int(settings.memory_gib * GIB),
            whole=not all(one.metric.takes_scatter for one in self.metrics),
            tap=self.metrics[0].tap,
            seed=settings.seed,
            classes=bool(separating),
            task=self.task,
            progress=self.progress,
            saturating=tuple(one.name for one in self.metrics if one.metric.saturates),
        )
        num_images, units = collect_maps(self.graph, self._batches(), request)
        return _Gathered(((name, part.channels, part.maps) for name, parts in units for part in parts), num_images)

    def _gradients(self) -> _Gathered:
        settings = self.settings
        gradients = collect_gradients(
            self.graph,
            self._batches(),
            num_images=settings.num_images,
            seed=settings.seed,
            task=self.task,
            progress=self.progress,
        )
        num_images = next(iter(gradients.values())).num_images
        return _Gathered(((name, None, each) for name, each in gradients.items()), num_images)

    def _discrimination(self) -> _Gathered:
        self._refuse_other_tasks(self.metrics)
        num_images, units = collect_discrimination(self.graph, self._sample(), self.task, progress=self.progress)
        return _Gathered(((name, None, each) for name, each in units.items()), num_images)

    def _importance(self) -> _Gathered:
        num_images, units = collect_importance(self.graph, self._images(), progress=self.progress)
        return _Gathered(((name, None, each) for name, each in units.items()), num_images)

    def _reader_inputs(self) -> _Gathered:
        seen, units = self._seen()
        return _Gathered(((each.unit, None, each) for each in seen.evidence()), seen.num_images, units)

    def _contributions(self) -> _Gathered:
        seen, units = self._seen()
        return _Gathered(((each.unit, None, each) for each in contributions(seen)), seen.num_images, units)

    def _filters(self) -> _Gathered:
        graph = self.graph
        return _Gathered(
            (name, None, Filters(name, filters(graph, unit), scales(graph, unit))) for name, unit in graph.units.items()
        )

    def _nothing(self) -> _Gathered:
        return _Gathered((name, None, UnitWidth(name, unit.width)) for name, unit in self.graph.units.items())

    def _seen(self) -> tuple[SeenInputs, list[str]]:
        """The inputs of the readers, and the units whose readers were seen. The log names the others."""
        if isinstance(self.source, HasSeenInputs):
            seen = self.source.seen
            if seen.graph is not self.graph:
                raise ScoreError("the inputs were seen in another graph: pass the graph that was given to repair_each")
        else:
            seen = collect_reader_inputs(self.graph, self._images(), seed=self.settings.seed or 0)
        units = list(seen.units())
        others = [name for name in self.graph.units if name not in units]
        why = "the layers that read them are called several times or by keyword, or are no linear map of their input"
        if not units:
            raise ScoreError(f"no unit can be scored by its readers: {why}; use a metric of activations or weights")
        if others:
            more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
            log.warning("no scores for %s%s, which stay as they are: %s", ", ".join(others[:SHOWN]), more, why)
        return seen, units

    def _batches(self) -> Batches:
        if self.source is None or isinstance(self.source, Statistics | HasSeenInputs):
            names = _names(self.metrics)
            raise ScoreError(f"{names} cannot be computed without images: pass a loader of (images, labels)")
        return self.source

    def _sample(self) -> Batches:
        """The images for metrics for which an image is costly."""
        return Sample(self._batches(), self.settings.sample_size, self.settings.seed, task=self.task).batches()

    def _images(self) -> Batches:
        """The same images without their labels, read batch by batch."""
        batches = enumerate(self._sample())
        return ((unpack_for(self.task, batch, number, labelled=False)[0],) for number, batch in batches)

    def _refuse_other_tasks(self, metrics: Sequence[ChosenMetric]) -> None:
        if self.task.label_kind != "classes":
            raise ScoreError(
                f"{_names(metrics)}: only for classification, with one class per image, and the task is "
                f"{self.task.name or 'user-provided'}; use reader_energy, rebuilt or, if there are classes, gsd"
            )


def _names(metrics: Sequence[ChosenMetric]) -> str:
    return ", ".join(one.name for one in metrics)
