"""Trials by the quality of a task other than classification.

All held-out images are read for all trials. Trials race (`secateur.deciding.racing`) if the quality is a mean over
images; nothing is known of which images tell most, so they come in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.batches import Batches, count_images, device_of, labels_to, move
from secateur.base.distributed import add_up
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.deciding.racing import Floats, Places, race
from secateur.deciding.trial_evaluation import KEPT_BYTES, RaceRules, Trial, TrialResult
from secateur.errors import DataError
from secateur.measuring.partial_forward import Cut, Staged
from secateur.measuring.quality_sums import QualitySums, image_values, outputs_for, unpack_for
from secateur.measuring.tasks import Task
from secateur.scoring.sampling import divisible

Pair = tuple[Any, Any]  # inputs and labels of a batch


def evaluate_task_trials(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    task: Task,
    measure: str,
    cut: Cut,
    rules: RaceRules | None,
    progress: Progress | None,
) -> tuple[TrialResult, list[TrialResult]]:
    """Results of the whole network and of each trial. rules: how a race ends; None: all images are read."""
    runner = _TaskTrials(graph, trials, task, cut)
    if rules is not None and measure == "accuracy" and task.measured.is_mean:
        kept = _in_memory(task, holdout)
        if kept is not None:
            return _race(runner, kept, rules, progress)
    sums = [QualitySums(task) for _ in range(len(trials) + 1)]
    for number, pair in enumerate(_pairs(task, holdout)):
        for i, outputs, labels, count in runner.run(range(len(trials)), pair, number):
            sums[i + 1].add(outputs, labels, count)
            if progress is not None and i >= 0:
                progress(number * len(trials) + i + 1, None)
    if not sums[0].num_images:
        raise DataError("the held-out loader gave no images; pass at least one batch of (images, labels)")
    found = torch.zeros(len(trials), 2, dtype=torch.float64)
    for i in runner.mine(range(len(trials))):
        found[i] = torch.tensor([sums[i + 1].value(), sums[i + 1].loss()[0]])
    rows = [(sums[0].value(), sums[0].loss()[0]), *add_up(found).tolist()]
    results = [_result(value, loss, measure, sums[0].num_images) for value, loss in rows]
    return results[0], results[1:]


def _race(
    runner: _TaskTrials, kept: list[Pair], rules: RaceRules, progress: Progress | None
) -> tuple[TrialResult, list[TrialResult]]:
    whole, base = QualitySums(runner.task), []
    for number, pair in enumerate(kept):
        for _, outputs, labels, count in runner.run((), pair, number):
            whole.add(outputs, labels, count)
            base.append(image_values(runner.quality, outputs, labels, count).cpu().double().numpy())
    if not whole.num_images:
        raise DataError("the held-out loader gave no images; pass at least one batch of (images, labels)")
    values = np.concatenate(base)

    def ask(units: Sequence[int], images: Places) -> Floats:
        found = np.zeros((len(units), len(images)))
        place = {unit: row for row, unit in enumerate(units)}
        start = end = 0
        for number, pair in enumerate(_rows(kept, images)):
            for i, outputs, labels, count in runner.run(units, pair, number):
                if i < 0:  # the whole network is the first to see a part of a batch
                    start, end = end, end + count
                    continue
                answers = image_values(runner.quality, outputs, labels, count).cpu().double().numpy()
                found[place[i], start:end] = answers
            if progress is not None:
                progress(number + 1, None)
        return add_up(torch.from_numpy(found)).numpy()

    order = np.random.default_rng(rules.seed).permutation(len(values))
    limits = {"confidence": rules.confidence, "tolerance": rules.tolerance}
    raced = race(values, order, ask, len(runner.trials), rules.k, **limits, seed=rules.seed)
    seen = zip(raced.values.tolist(), raced.seen, strict=True)
    loss = whole.loss()[0]
    return (
        _result(float(values.mean()), loss, "accuracy", len(values)),
        [TrialResult(value, None, value, count) for value, count in seen],
    )


class _TaskTrials:
    """Runs the network whole and without the channels of each trial, on one batch at a time."""

    def __init__(self, graph: ChannelGraph, trials: Sequence[Trial], task: Task, cut: Cut) -> None:
        self.trials, self.task, self.quality = trials, task, task.measured
        self._staged = Staged(graph, cut, outputs=lambda output: output)
        self._device = device_of(graph.model)
        self._asked = False

    def mine(self, which: Iterable[int]) -> list[int]:
        """The trials that this process runs."""
        together = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        return [i for place, i in enumerate(which) if place % world == rank]

    def run(self, which: Iterable[int], pair: Pair, number: int) -> Iterator[tuple[int, Any, Any, int]]:
        """(trial, outputs, labels, number of images), part by part: the whole network, -1, then each trial."""
        for inputs, labels in self._parts(move(pair[0], self._device), labels_to(pair[1], self._device)):
            if not self._asked:
                self._asked = True
                self._staged.agrees(inputs)
            count = count_images(inputs)
            yield -1, outputs_for(self.task, self._staged.whole(inputs), labels, number), labels, count
            for i in self.mine(which):
                output = self._staged.without(self.trials[i].unit, self.trials[i].kept)
                yield i, outputs_for(self.task, output, labels, number), labels, count

    def _parts(self, inputs: Any, labels: Any) -> Iterator[Pair]:
        """A batch in parts of which the kept values fit in memory; whole if its labels cannot be divided."""
        count, size = count_images(inputs), self._staged.at_once
        if count <= size or not divisible(labels, count):
            yield inputs, labels
            return
        for start in range(0, count, size):
            cut: Callable[[Any], Any] = lambda x: x[start : start + size]  # noqa: B023, E731
            yield tree_map(cut, inputs), tree_map(cut, labels)


def _pairs(task: Task, loader: Iterable[Any]) -> Iterator[Pair]:
    for number, batch in enumerate(loader):
        yield unpack_for(task, batch, number)


def _in_memory(task: Task, holdout: Batches) -> list[Pair] | None:
    """All batches, if they fit in memory and single images can be picked; a race reads them many times."""
    kept, size = [], 0
    for pair in _pairs(task, list(holdout) if iter(holdout) is holdout else holdout):
        kept.append(pair)
        size += sum(x.numel() * x.element_size() for x in tree_leaves(pair) if isinstance(x, Tensor))
        if size > KEPT_BYTES or not divisible(pair[1], count_images(pair[0])):
            return None
    return kept


def _rows(kept: list[Pair], wanted: Places) -> Iterator[Pair]:
    """The images at these places (ascending), batch by batch."""
    start = 0
    for inputs, labels in kept:
        count = count_images(inputs)
        here = torch.from_numpy(wanted[(wanted >= start) & (wanted < start + count)] - start)
        if len(here):
            pick: Callable[[Any], Any] = lambda x: x[here] if isinstance(x, Tensor) else x  # noqa: B023, E731
            yield tree_map(pick, inputs), tree_map(pick, labels)
        start += count


def _result(value: float, loss: float, measure: str, num_images: int) -> TrialResult:
    return TrialResult(value, loss, value if measure == "accuracy" else -loss, num_images)
