"""Trials: one unit at a time loses channels, and held-out images say how much that hurts.

All images are read for all trials, or trials race (`prunus.decide.racing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from prunus.decide.racing import Floats, Places, race
from prunus.errors import DataError, DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.score.passes import divisible
from prunus.tasks import Task
from prunus.tasks.evaluate import QualitySums, image_values, outputs_for, unpack_for
from prunus.tasks.partial_forward import Cut, Staged
from prunus.util.batches import Batches, call, check_range, count_images, device_of, labels_to, logits_of, move, unpack
from prunus.util.processes import add_up
from prunus.util.progress import Progress

KEPT_BYTES = 2**30  # a race reads the images many times: up to this size they are kept in memory


@dataclass(frozen=True)
class Trial:
    """One unit loses channels."""

    unit: str
    removed: int
    kept: list[int]

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the trial."""
        return self.unit, self.removed


@dataclass(frozen=True)
class TrialResult:
    """What held-out images say of a network. Units are ranked by `value`; higher is better."""

    accuracy: float | None
    loss: float | None
    value: float
    num_images: int


@dataclass(frozen=True)
class Answers:
    """For each image: 1 if the network is right, the cross-entropy, the margin of the true class, the label."""

    right: Floats
    loss: Floats
    margin: Floats  # logit of the true class minus the highest other one
    labels: Places

    def value(self, measure: str) -> Floats:
        """The value that units are ranked by, for each image; higher is better."""
        return self.right if measure == "accuracy" else -self.loss

    def telling(self, measure: str) -> Places:
        """The images, starting with those that are most likely to change when a unit loses channels: images near the
        decision boundary, or, for the loss, images with a high loss."""
        return np.argsort(np.abs(self.margin) if measure == "accuracy" else -self.loss, kind="stable")

    def result(self, measure: str) -> TrialResult:
        """The means over all images."""
        return _result(float(self.right.mean()), float(self.loss.mean()), measure, len(self.right))


def answers_of(logits: Tensor, labels: Tensor) -> Answers:
    """The network's answers on some images."""
    places = labels[:, None]
    others = logits.scatter(1, places, -torch.inf).amax(1)
    margin = (logits.gather(1, places)[:, 0] - others).double()
    right = (logits.argmax(1) == labels).double()
    loss = F.cross_entropy(logits.double(), labels, reduction="none")
    return Answers(*(x.cpu().numpy() for x in (right, loss, margin, labels)))


def evaluate_trials(
    graph: ChannelGraph, trials: Sequence[Trial], holdout: Batches, measure: str, cut: Cut, progress: Progress | None
) -> tuple[TrialResult, list[TrialResult]]:
    """The whole network and all trials, on all held-out images."""
    runner = _TrialRunner(graph, trials, cut)
    total, base = _length(holdout), []
    sums = np.zeros((len(trials), 2))
    for number, (inputs, labels) in enumerate(_batches(graph, holdout)):
        step = _advance(progress, number, total or number + 1, len(trials))
        whole, values = runner.run(range(len(trials)), inputs, labels, step, number)
        base += whole
        sums += values.sum(axis=2)
    together = _joined(base)
    count = len(together.right)
    return together.result(measure), [_result(right / count, loss / count, measure, count) for right, loss in sums]


@dataclass(frozen=True)
class RaceRules:
    """When a race ends: with probability `confidence`, the k best found are within `tolerance` of the true k best."""

    k: int
    confidence: float
    tolerance: float
    seed: int


def race_trials(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    measure: str,
    cut: Cut,
    rules: RaceRules,
    progress: Progress | None,
) -> tuple[TrialResult, list[TrialResult]]:
    """The whole network on all held-out images, and trials on as many as it takes to find the k best."""
    loader = _kept(holdout)
    base = _whole(graph, loader)
    runner = _TrialRunner(graph, trials, cut)
    losses, asked = np.zeros(len(trials)), 0

    def ask(units: Sequence[int], images: Places) -> Floats:
        nonlocal asked
        inputs, labels = _pick(graph, loader, images, base.labels)
        step = _advance(progress, asked / len(images), len(base.right) / len(images), len(units))
        _, values = runner.run(units, inputs, labels, step)
        losses[units] += (values[:, 1] - base.loss[images]).sum(axis=1)
        asked += len(images)
        return values[:, 0] if measure == "accuracy" else -values[:, 1]

    limits = {"confidence": rules.confidence, "tolerance": rules.tolerance}
    raced = race(base.value(measure), base.telling(measure), ask, len(trials), rules.k, **limits, seed=rules.seed)
    if progress is not None:
        progress(1, 1)
    seen = list(zip(raced.values.tolist(), raced.seen, strict=True))
    if measure != "accuracy":
        return base.result(measure), [TrialResult(None, -value, value, count) for value, count in seen]
    means = (base.loss.mean() + losses / len(base.loss)).tolist()
    results = [TrialResult(value, mean, value, n) for (value, n), mean in zip(seen, means, strict=True)]
    return base.result(measure), results


class _TrialRunner:
    """Evaluates trials on images, as many images at once as fit in memory."""

    def __init__(self, graph: ChannelGraph, trials: Sequence[Trial], cut: Cut) -> None:
        self._trials = trials
        self._staged = Staged(graph, cut)
        self._asked = False

    def run(
        self, which: Sequence[int], inputs: Any, labels: Tensor, step: Callable[[float], None], batch: int = 0
    ) -> tuple[list[Answers], Floats]:
        """Answers of the whole network; right and loss of each trial: [trials, 2, images]."""
        base, values = [], [np.zeros((len(which), 2, 0))]
        for start in range(0, len(labels), self._staged.at_once):
            part = slice(start, start + self._staged.at_once)
            here, truth = tree_map(lambda x: x[part], inputs), labels[part]  # noqa: B023
            if not self._asked:
                self._asked = True
                self._staged.agrees(here)
            logits = self._staged.whole(here)
            check_range(truth.cpu(), logits, batch)
            base.append(answers_of(logits, truth))
            values.append(self._without(which, truth, lambda done: step((start + done * len(truth)) / len(labels))))  # noqa: B023
        return base, np.concatenate(values, axis=2)

    def _without(self, which: Sequence[int], labels: Tensor, step: Callable[[float], None]) -> Floats:
        """Each trial is run by one of the processes, and all of them get its result."""
        together = dist.is_available() and dist.is_initialized()
        rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        results = np.zeros((len(which), 2, len(labels)))
        for i in range(rank, len(which), world):
            trial = self._trials[which[i]]
            answers = answers_of(self._staged.without(trial.unit, trial.kept), labels)
            results[i] = answers.right, answers.loss
            step((i + 1) / len(which))
        return add_up(torch.from_numpy(results)).numpy()


# ------------------------------------------------------------------------------------------------------------- batches


def _whole(graph: ChannelGraph, loader: Iterable[Any]) -> Answers:
    parts = []
    for number, (inputs, labels) in enumerate(_batches(graph, loader)):
        logits = logits_of(call(graph.model, inputs))
        check_range(labels.cpu(), logits, number)
        parts.append(answers_of(logits, labels))
    return _joined(parts)


def _joined(parts: Sequence[Answers]) -> Answers:
    if not sum(len(part.right) for part in parts):
        raise DataError("the held-out loader gave no images; pass at least one batch of (images, labels)")
    return Answers(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("right", "loss", "margin", "labels")))


def _batches(graph: ChannelGraph, loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    device = device_of(graph.model)
    for number, batch in enumerate(loader):
        images, labels = unpack(batch, number)
        yield move(images, device), labels.to(device)


def _kept(holdout: Batches) -> Batches:
    """The batches in memory, so that all chunks see the same images; the loader itself if they do not fit."""
    kept, size = [], 0
    for batch in holdout:
        kept.append(batch)
        size += sum(x.numel() * x.element_size() for x in tree_leaves(batch) if isinstance(x, Tensor))
        if size > KEPT_BYTES and iter(holdout) is not holdout:
            return holdout
    return kept


def _pick(graph: ChannelGraph, loader: Iterable[Any], wanted: Places, labels: Places) -> tuple[Any, Tensor]:
    """The images at these places of the loader (ascending), and their labels."""
    start, images, found = 0, [], []
    for number, batch in enumerate(loader):
        inputs, answers = unpack(batch, number)
        here = torch.from_numpy(wanted[(wanted >= start) & (wanted < start + len(answers))] - start)
        if len(here):
            images.append(tree_map(lambda x: x[here], inputs))  # noqa: B023
            found.append(answers[here])
        start += len(answers)
    together = torch.cat(found)
    if not np.array_equal(together.cpu().numpy(), labels[wanted]):
        raise DataError(
            "the held-out loader returns its images in a different order each time, and a race needs the same order: "
            "turn shuffling off, or pass exact=True"
        )
    device = device_of(graph.model)
    return move(tree_map(lambda *parts: torch.cat(parts), *images), device), together.to(device)


def _result(accuracy: float, loss: float, measure: str, num_images: int) -> TrialResult:
    return TrialResult(accuracy, loss, accuracy if measure == "accuracy" else -loss, num_images)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an iterable without a length, such as a DataLoader over an IterableDataset
        return None


def _advance(progress: Progress | None, done: float, total: float, each: int) -> Callable[[float], None]:
    """Reports progress: `done` parts of `total` and a share of the next, where a part has `each` steps."""

    def step(share: float) -> None:
        if progress is not None:
            progress(round((done + share) * each), round(total * each))

    return step


# Trials by the quality of a task other than classification.

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
        found[i] = torch.tensor([sums[i + 1].value(), sums[i + 1].evaluation().loss])
    rows = [(sums[0].value(), sums[0].evaluation().loss), *add_up(found).tolist()]
    results = [_result_task_trials(value, loss, measure, sums[0].num_images) for value, loss in rows]
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
    loss = whole.evaluation().loss
    return (
        _result_task_trials(float(values.mean()), loss, "accuracy", len(values)),
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


def _result_task_trials(value: float, loss: float, measure: str, num_images: int) -> TrialResult:
    return TrialResult(value, loss, value if measure == "accuracy" else -loss, num_images)


# Trials by a measure of the user's own, which takes the network and the held-out images.


def by_own_measure(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    measure: Callable[[nn.Module, Batches], float],
    cut: Cut,
    progress: Progress | None,
) -> tuple[TrialResult, list[TrialResult]]:
    """The user's own measure of the network, whole and for each trial."""
    holdout = list(holdout) if iter(holdout) is holdout else holdout  # it is read once for each trial
    base = _own_result(measure, graph, holdout, "the whole network")
    results = []
    for i, trial in enumerate(trials):
        with cut(trial.unit, trial.kept):
            results.append(_own_result(measure, graph, holdout, f"unit {trial.unit} cut to {len(trial.kept)} channels"))
        if progress is not None:
            progress(i + 1, len(trials))
    return base, results


def _own_result(
    measure: Callable[[nn.Module, Batches], float], graph: ChannelGraph, holdout: Batches, what: str
) -> TrialResult:
    found = measure(graph.model, holdout)
    try:
        value = float(found)
    except (TypeError, ValueError) as error:
        raise DecideError(f"your measure must return a number, but returned {type(found).__name__}") from error
    if math.isnan(value):
        raise DecideError(f"your measure returned NaN for {what}, and units cannot be ranked by it")
    return TrialResult(None, None, value, 0)
