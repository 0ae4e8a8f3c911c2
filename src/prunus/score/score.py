"""Scores of every channel by one metric, several or all, in as few passes over the data as they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import check_graph
from prunus.score.evidence_sources import (
    ALL,
    AnyMetric,
    ChosenMetric,
    OwnMetric,
    ScoreRequest,
    Source,
    choose_metrics,
    gather_evidence,
    without_classes,
)
from prunus.score.metrics import DEFAULT_METRIC
from prunus.score.passes import CHUNK
from prunus.score.scores import Scores, ScoreSettings, Vector, Where, checked
from prunus.util.options import check
from prunus.util.progress import Progress, shown, steps


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
    progress: Progress | bool | None = None,
    **options: Any,
) -> dict[str, Scores]: ...


@overload
def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: OwnMetric | str = DEFAULT_METRIC,
    num_images: int | None = None,
    *,
    tap: Where = "reader",
    num_map_images: int | None = 2000,
    memory_gib: float = 2.0,
    seed: int | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Scores: ...


def score(
    graph: ChannelGraph,
    loader: Source | None = None,
    metric: OwnMetric | str | list[Any] | tuple[Any, ...] = DEFAULT_METRIC,
    num_images: int | None = None,
    *,
    tap: Where = "reader",
    num_map_images: int | None = 2000,
    memory_gib: float = 2.0,
    seed: int | None = None,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Scores | dict[str, Scores]:
    """Score every channel of every unit; higher means keep.

    loader: batches of (images, labels), tuples or dicts, or of images alone where no labels are needed, or a tensor of
        all these images; or the Statistics of an earlier `collect`; or, for "rebuilt", "thinet" and "cp", the result of
        `repair_each`, whose pass is used again. Under torchrun each process passes its share of the images, and all get
        the merged scores.
        Metrics of the weights alone need no loader.
    metric: a name; a name with options, as in "gsd:ridge=0.5"; your own function of a `Channels`, which
        returns one number per channel. A list of these gives a dict of Scores by name, "all" that of all metrics;
        metrics that need the same pass over the images share it. If a unit is read at several places, its score is the
        maximum over them. The default is that of Algorithm 1 in `compress`, too.
    num_images: a new stratified sample of this many images instead of all images; `seed` makes it reproducible.
    tap: "reader" scores the tensor that enters the readers, "before_activation" the tensor in front of the activation
        before them; for metrics of activations.
    num_map_images, memory_gib: number of images and GiB of memory for metrics that need whole feature maps, `di`,
        `mmd`, `hrank` and `chip`. Their sample is class-balanced if there are labels. `num_map_images` also limits the
        images of `rebuilt`, `thinet`, `cp`, `nisp` and `dcp`.
    progress: False shows nothing; your own function is called with the batches done and the number of batches.
    options: options of the metric, such as ridge=, rho=, sigma=; and task=, a `Task` or the name of one, if the
        network is no classifier (docs/tasks.md).
    """
    task = options.pop("task", None)
    settings = ScoreSettings(num_images, tap, num_map_images, memory_gib, seed, task)
    metrics = list(metric) if isinstance(metric, list | tuple) else [metric]
    source: Any = loader
    if isinstance(loader, Tensor):
        source = [loader[start : start + CHUNK] for start in range(0, len(loader), CHUNK)]
    found = score_by(graph, source, metrics, settings, progress=progress, **options)
    return found if isinstance(metric, list | tuple) or metric == ALL else next(iter(found.values()))


def score_by(
    graph: ChannelGraph,
    loader: Source | None,
    metrics: Sequence[AnyMetric],
    settings: ScoreSettings | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Any,
) -> dict[str, Scores]:
    """Scores by several metrics, name -> Scores. Metrics that need the same pass share it.

    settings: which images and which tensor; see `score` for the fields. metrics, options: as for `score`.
    """
    check_graph(graph)
    settings = settings or ScoreSettings()
    check(settings, ScoreError)
    chosen = choose_metrics(metrics, settings, options)
    if ALL in metrics:
        chosen = without_classes(chosen, settings)
    if not graph.units:
        name = type(graph.model).__name__
        raise ScoreError(f"{name} has no channels that can be removed, so there is nothing to score (see graph.frozen)")
    groups: dict[str, list[ChosenMetric]] = {}
    for one in chosen:
        groups.setdefault(one.shares, []).append(one)
    results: dict[str, Scores] = {}
    with shown(progress, steps("score")) as report:
        for group in groups.values():
            results |= _scored(ScoreRequest(graph, loader, settings, report), group)
    return {one.name: results[one.name] for one in chosen}


def _scored(request: ScoreRequest, metrics: Sequence[ChosenMetric]) -> dict[str, Scores]:
    """Scores by metrics that need the same evidence."""
    gathered = gather_evidence(metrics[0].metric.needs, request, metrics)
    names = request.graph.units if gathered.units is None else gathered.units
    widths = {name: request.graph.units[name].width for name in names}
    values = {one.name: {unit: np.full(width, -np.inf) for unit, width in widths.items()} for one in metrics}
    for unit, channels, evidence in gathered.parts:
        where = slice(None) if channels is None else channels
        for one in metrics:
            vector = values[one.name][unit]
            new = _vector(one.metric.score(evidence, **one.options), one.name, unit, len(vector[where]))
            vector[where] = np.fmax(vector[where], new) if np.isfinite(new).all() else new
    return {
        one.name: Scores(
            one.metric.name,
            checked(values[one.name], one.name, widths),
            gathered.num_images,
            one.options,
            gathered.notes,
        )
        for one in metrics
    }


def _vector(found: Any, metric: str, unit: str, channels: int) -> Vector:
    array = found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found)
    if array.shape != (channels,):
        raise ScoreError(
            f"{metric} must give unit {unit} {channels} scores, one per channel, got the shape {list(array.shape)}"
        )
    return array.astype(np.float64)
