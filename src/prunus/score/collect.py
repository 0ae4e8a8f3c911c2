"""Class moments of every channel of every unit, in one forward pass over images, as a rule labelled ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.score.moments import Accumulator, BatchMoments, ClassMoments, by_class
from prunus.score.passes import sampled, walk
from prunus.score.scores import Where
from prunus.score.statistics import (
    RowSums,
    Statistics,
    TapMoments,
    TaskGatherer,
    reduce,
    to_sums,
    together,
    usable_classes,
)
from prunus.score.taps import Slot, Tap, gather, locate_taps, watched
from prunus.tasks import Task, is_classification, task_of
from prunus.util.batches import Batches
from prunus.util.processes import add_up, all_or_none, check_even, processes
from prunus.util.progress import Progress

Part = tuple[str, bytes]  # a tap, and Slot.key: what is reduced there


def collect(
    graph: ChannelGraph,
    loader: Batches,
    *,
    num_images: int | None = None,
    tap: Where = "reader",
    seed: int | None = None,
    task: Task | str | None = None,
    classes: bool = True,
    progress: Progress | None = None,
) -> Statistics:
    """Count, mean and m2 of every channel and class in one pass. Every metric of moments can be computed from them.

    loader: batches of (images, labels), tuples or dicts; under torchrun each process passes its own share.
    num_images: a new stratified sample of this many images instead of all images; `seed` makes it reproducible.
    tap: "reader" is the tensor that enters the layers that read the unit; "before_activation" the tensor in front of
        the activation before them, if there is one (`Statistics.notes` says where there is none).
    task: what the network is for; its labels say which classes there are (docs/tasks.md). Classification by default.
    classes: False: moments of all images together are enough, so that batches may be images alone.
    The model, its mode, its hooks and the random generators are left as they were, on errors too.
    """
    places = locate_taps(graph, tap)
    chosen = task_of(task)
    plain = is_classification(chosen) or not classes
    gatherer = _Gatherer(places.taps, by_class=is_classification(chosen)) if plain else _by_task(places.taps, chosen)
    before = None if isinstance(gatherer, _Gatherer) else gatherer.before
    with watched(graph, places, gatherer.see) as sharing:
        batches = sampled(loader, num_images, seed, chosen)
        how: dict[str, Any] = {"before": before, "labelled": classes, "task": chosen, "progress": progress}
        total = all_or_none(lambda: walk(graph, batches, gatherer.after, **how))
    check_even(total)
    present, found = gatherer.finish()
    units: dict[str, list[TapMoments]] = {name: [] for name in graph.units}
    for name, place in sharing.merged(places.taps).items():
        for slot in place.slots:
            units[slot.unit].append(TapMoments(slot.channels, slot.readers, _of_slot(found[name, slot.key], slot)))
    taps = {name: tuple(parts) for name, parts in units.items()}
    return Statistics(gatherer.num_images, present, taps, places.notes)


def _by_task(taps: Mapping[str, Tap], task: Task) -> TaskGatherer:
    if task.classes is None:
        raise ScoreError(
            f"the labels of the task {task.name or 'own'} are no classes, which this metric separates. Use a metric "
            "that needs none, such as reader_energy, act_variance or rebuilt; or give the task classes=, as "
            "prunus.regression(bins=...) does"
        )
    return TaskGatherer(taps, task)


class _Gatherer:
    """Keeps what the taps show until a batch is done, then adds it to the running moments."""

    def __init__(self, taps: Mapping[str, Tap], by_class: bool = True) -> None:
        """by_class: False: labels are ignored. They are also if the first batch has none."""
        self._taps, self._by_class = taps, by_class
        self._needs = {name: list(tap.needs().items()) for name, tap in taps.items()}
        self._pending: dict[Part, RowSums] = {}
        self._parts: list[Part] = []
        self._moments: Accumulator | None = None

    def see(self, name: str, x: Tensor) -> None:
        """Reduce the tensor at a tap: the whole axis once for all plain slots, and each pooled slot separately.

        The positions of all calls of a layer count."""
        for key, slot in self._needs[name]:
            sums = reduce(gather(x, slot) if key else x)
            before = self._pending.get((name, key))
            if before is not None and len(before.total) != len(sums.total):
                raise ScoreError(f"{name} is called with another number of images each time; it cannot be scored")
            self._pending[name, key] = sums if before is None else together(before, sums)

    def after(self, batch: int, labels: Tensor | None, logits: Any) -> None:
        """Add the batch to the running moments."""
        parts, self._pending = self._pending, {}
        if self._moments is None:
            self._parts = list(parts)
            self._by_class = self._by_class and labels is not None
            classes = logits.shape[1] if self._by_class else 1
            self._moments = Accumulator(classes, [part.total.shape[1] for part in parts.values()])
        if labels is None or not self._by_class:
            labels = torch.zeros(len(next(iter(parts.values())).total), dtype=torch.int64)
        if parts.keys() != set(self._parts):
            odd = sorted({name for name, _ in parts.keys() ^ set(self._parts)})
            raise ScoreError(f"batch {batch} runs through other layers than the first batch: {', '.join(odd)}")
        moments = by_class(to_sums([parts[part] for part in self._parts]), labels)
        self._check_finite(moments, parts, batch)
        self._moments.add(moments)

    @property
    def num_images(self) -> int:
        """Number of images added so far; after `finish`, of all processes."""
        return 0 if self._moments is None else int(self._moments.num_images.sum())

    def finish(self) -> tuple[tuple[int, ...], dict[Part, ClassMoments]]:
        """The usable classes, and the moments of each part, merged over all processes."""
        assert self._moments is not None  # there was at least one image
        if processes() > 1:
            self._moments.sum_over(add_up)
        classes = usable_classes([int(n) for n in self._moments.num_images]) if self._by_class else (0,)
        return classes, dict(zip(self._parts, self._moments.result(classes), strict=True))

    def _check_finite(self, moments: BatchMoments, parts: Mapping[Part, RowSums], batch: int) -> None:
        good = torch.isfinite(moments.m2.sum(0))  # [C]
        if bool(good.all()):
            return
        column = int((~good).nonzero()[0, 0])
        for part in self._parts:
            width = parts[part].total.shape[1]
            if column < width:
                units = _units_at(self._taps[part[0]], part[1], column)
                raise ScoreError(
                    f"batch {batch}: activations of unit {units} that enter {part[0]} are NaN, infinite or too large "
                    "to square; check the images and the weights"
                )
            column -= width


def _units_at(tap: Tap, key: bytes, column: int) -> str:
    """The unit that a column belongs to; all units of the tap if it belongs to none."""
    mine = [s.unit for s in tap.slots if s.key == key and (key or column in s.inputs)]
    return " and ".join(dict.fromkeys(mine or [slot.unit for slot in tap.slots]))


def _of_slot(moments: ClassMoments, slot: Slot) -> ClassMoments:
    inputs = slot.inputs[:, 0]
    if slot.key or np.array_equal(inputs, np.arange(moments.channels)):
        return moments
    return moments.select(torch.from_numpy(inputs))
