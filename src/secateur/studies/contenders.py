"""The metrics that a study compares, and the passes over the images that they share.

A metric is named as everywhere else, and options may follow: `gsd`, `gsd:ridge=0.5`, `gsd:tap=before_activation`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.errors import ScoreError
from secateur.scoring.collect import collect
from secateur.scoring.metrics import METRICS
from secateur.scoring.score import OwnMetric, score, score_by
from secateur.scoring.scores import Scores

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class Contender:
    """A metric with its options, under the name it was asked for by."""

    name: str
    metric: str | OwnMetric
    options: Mapping[str, Any]

    @property
    def shares(self) -> str:
        """The pass that gives its scores; metrics with the same one are scored together."""
        needs = "moments" if callable(self.metric) else METRICS[self.metric].needs
        if needs in ("filters", "nothing"):
            return "weights"
        if needs == "moments":  # all options but the place are applied when the pass is over
            return f"moments-{self.options.get('tap', 'reader')}"
        return "-".join([needs, *(f"{key}={value}" for key, value in sorted(self.options.items()))])


@dataclass(frozen=True)
class Sampling:
    """How many images a pass sees, and which."""

    images: int | None  # None: all
    map_images: int | None  # for metrics that need whole maps, di and mmd
    seed: int


def contenders(metrics: Sequence[str | OwnMetric]) -> list[Contender]:
    """The metrics by name ("all" stands for every one that secateur has) or as your own functions, each once."""
    found: dict[str, Contender] = {}
    for metric in metrics:
        for name in METRICS if metric == "all" else (metric,):
            one = _own(name) if callable(name) else _named(name)
            found[one.name] = one
    if not found:
        raise ScoreError("no metric is named; 'all' takes every one that secateur has")
    return list(found.values())


def scored(
    graph: ChannelGraph, loader: Batches, group: Sequence[Contender], how: Sampling, progress: Progress | None = None
) -> dict[str, Scores]:
    """Scores of contenders that share a pass, name -> Scores."""
    kind = group[0].shares
    if kind == "weights":
        return {one.name: score(graph, None, one.metric, seed=how.seed, **one.options) for one in group}
    if kind.startswith("moments"):
        tap = group[0].options.get("tap", "reader")
        statistics = collect(graph, loader, images=how.images, tap=tap, seed=how.seed, progress=progress)
        rest = {one.name: {k: v for k, v in one.options.items() if k != "tap"} for one in group}
        return {one.name: score(graph, statistics, one.metric, seed=how.seed, **rest[one.name]) for one in group}
    found = score_by(
        graph,
        loader,
        [one.metric for one in group],
        how.images,
        sample=how.map_images,
        seed=how.seed,
        progress=progress,
        **group[0].options,
    )
    return dict(zip((one.name for one in group), found.values(), strict=True))


def _own(metric: OwnMetric) -> Contender:
    return Contender(getattr(metric, "__name__", type(metric).__name__), metric, {})


def _named(text: str) -> Contender:
    """'gsd:ridge=0.5' as the metric gsd with the option ridge."""
    name, *parts = text.split(":")
    METRICS.check(name)
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ScoreError(f"options of a metric follow it as in gsd:ridge=0.5, and {text!r} has {part!r}")
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = value
    taken = [*list(inspect.signature(METRICS[name].score).parameters)[1:], *_places(name)]
    unknown = sorted(options.keys() - set(taken))
    if unknown:  # said now, and not after a pass over all images
        raise ScoreError(f"{name} has no option {unknown[0]!r}; its own are: {', '.join(taken) or 'none'}")
    return Contender(text, name, options)


def _places(name: str) -> list[str]:
    return ["tap"] if METRICS[name].needs in ("moments", "maps") else []
