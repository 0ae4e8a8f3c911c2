"""Trials: one unit at a time loses channels, and held-out images say how much that hurts.

`run_trials` evaluates them by the quality or the loss of any task, or by a user-provided measure. All images are read
for all trials, or trials race (`prunus.deciding.trials`). Layers in front of a change are not computed again
(`prunus.tasks.partial_forward`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from prunus.deciding.settings import RankSettings, check_k
from prunus.errors import DataError, DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.runner import copied
from prunus.scoring.passes import divisible
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import QualitySums, image_values, mean_loss, outputs_for, unpack_for
from prunus.tasks.partial_forward import Cut, PartialForward
from prunus.util.batches import Batches, call, count_images, device_of, length_of, move, to_device
from prunus.util.processes import add_up, processes
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Ask = Callable[[Sequence[int], Places], Floats]  # units, images -> their values [units, images]

CHUNKS = 20  # the images are read in this number of chunks
SMALLEST_CHUNK = 50
LEAST_CHUNKS = 3  # fewer do not show how changes shrink from chunk to chunk
DRAWS = 400
DECAY = (0.3, 1.0)  # bounds of the factor by which changes shrink from chunk to chunk


def race(
    base: Floats, order: Places, ask: Ask, units: int, k: int, *, confidence: float, tolerance: float, seed: int
) -> tuple[Floats, Places]:
    """Evaluate units on images until the k best are known well enough.

    Args:
        base: The whole network's value on each image; units are compared with it.
        order: The images, the most informative first.
        ask: Gives the values of units on images, which are in ascending order.
        confidence: With this probability, the k units found are in the mean within `tolerance` of the true k best.

    Returns:
        Each unit's mean value over all images, extrapolated if it has not seen all of them, and how many it has seen.
    """
    size = max(SMALLEST_CHUNK, -(-len(order) // CHUNKS))
    state = _Race(base, units, k, confidence, tolerance, seed)
    for chunk in np.split(order, range(size, len(order), size)):
        images, active = np.sort(chunk), np.flatnonzero(state.in_race).tolist()
        state.add(active, ask(active, images), images)
        if state.settled():
            break
    return state.expected(), state.seen


class _Race:
    """Running sums, extrapolation and the decision to stop."""

    def __init__(self, base: Floats, units: int, k: int, confidence: float, tolerance: float, seed: int) -> None:
        self.base, self.k = base, min(k, units)
        self.confidence, self.tolerance = confidence, tolerance
        self.random = np.random.default_rng(seed)
        self.change = np.zeros(units)  # sum of changes over the images seen
        self.seen = np.zeros(units, dtype=np.int64)
        self.rate = np.zeros(units)  # mean change per image in the last chunk
        self.spread = np.ones(units)  # its variance per image
        self.weight = np.ones(units)  # expected share of that rate on the remaining images
        self.in_race = np.ones(units, dtype=bool)
        self.chunk = 1  # images in the last chunk

    def add(self, units: Sequence[int], values: Floats, images: Places) -> None:
        """Add the units' values on a chunk of images: values [units, images]."""
        rows, before = np.asarray(units), self.spread[units].sum()
        difference = values - self.base[images]  # [units, images]
        each = (difference**2).mean(axis=1)
        # A unit without changes in this chunk may still change later: half of its spread is the mean of all units.
        together = max(float(each.mean()), 0.5 / difference.size)
        self.spread[rows] = (each + together) / 2
        self.rate[rows] = difference.mean(axis=1)
        self.change[rows] += difference.sum(axis=1)
        decay = 1.0 if not self.seen.any() else float(np.clip(self.spread[rows].sum() / before, *DECAY))
        self.seen[rows] += len(images)
        self.chunk = len(images)
        chunks = max(1, -(-(len(self.base) - int(self.seen.max())) // len(images)))
        self.weight[rows] = np.mean(decay ** np.arange(1, chunks + 1))

    def expected(self) -> Floats:
        """Each unit's value over all images; units that dropped out are at most as good as the k-th best."""
        left = len(self.base) - self.seen
        values = self.base.mean() + (self.change + left * self.weight * self.rate) / len(self.base)
        worst = np.sort(values[self.in_race])[-self.k]
        return np.asarray(np.where(self.in_race, values, np.minimum(values, worst)))

    def settled(self) -> bool:
        """Whether the k best are known well enough. Drops units that can no longer be among them."""
        running = np.flatnonzero(self.in_race)
        left = (len(self.base) - self.seen)[running]
        if not left.any() or len(running) <= self.k:
            return True
        expected = self.expected()[running]
        more = left * self.weight[running]  # remaining images, in images like those of the last chunk
        # Both the remaining values and the rate seen in the last chunk are uncertain.
        deviation = np.sqrt(self.spread[running] * (more + more**2 / self.chunk)) / len(self.base)
        draws = expected + deviation * self.random.standard_normal((DRAWS, len(running)))
        best = np.argpartition(-draws, self.k - 1, axis=1)[:, : self.k]
        self.in_race[np.delete(running, np.unique(best))] = False
        chosen = np.argsort(-expected, kind="stable")[: self.k]
        regret = np.take_along_axis(draws, best, axis=1).mean(axis=1) - draws[:, chosen].mean(axis=1)
        known = self.seen.max() >= LEAST_CHUNKS * self.chunk
        return bool(known and np.quantile(regret, self.confidence) <= self.tolerance)


# -- racing

NO_IMAGES = "the held-out loader gave no images; pass at least one batch of (images, labels)"
KEPT_BYTES = 2**30  # a race reads the images many times: up to this size they are kept in memory

Trial = tuple[str, list[int]]  # a unit, and the channels that it keeps
Pair = tuple[Any, Any]  # inputs and labels of some images
Step = Callable[[float], None]  # takes the share of a batch or chunk that is done


@dataclass(frozen=True)
class TrialResult:
    """What held-out images say of a network. Units are ranked by `value`; higher is better."""

    quality: float | None
    loss: float | None
    value: float
    num_images: int


def run_trials(
    graph: ChannelGraph, trials: Sequence[Trial], holdout: Batches, settings: RankSettings, cut: Cut, progress: Progress
) -> list[TrialResult]:
    """The results of the whole network, and then of each trial."""
    k = check_k(settings.k, len({unit for unit, _ in trials}))
    with evaluating(graph.model), generators_kept(), torch.no_grad():
        if callable(settings.measure):
            return _by_function(graph, trials, holdout, settings.measure, cut, progress)
        runner = _Runner(graph, trials, task_of(settings.task), settings.measure, cut)
        if not settings.exact and settings.split != "ratio" and runner.can_race:
            holdout = _in_memory(holdout)
            results = _race(runner, holdout, k, settings, progress)
            if results is not None:
                return results
        return _on_all_images(runner, holdout, progress)


class _Runner:
    """Runs the network whole and without the channels of each trial, as many images at once as fit in memory."""

    def __init__(self, graph: ChannelGraph, trials: Sequence[Trial], task: Task, measure: str, cut: Cut) -> None:
        self.model, self.trials, self.task, self.by_loss = graph.model, trials, task, measure == "loss"
        self._staged = PartialForward(graph, cut, outputs=task.outputs or (lambda output: output))
        self._device = device_of(graph.model)
        self._first = True
        # The loss of a task is known batch by batch. Only classification's is the mean of its images' losses for sure.
        self.can_race = task.margins is not None if self.by_loss else task.measured.is_mean

    def mine(self, which: Iterable[int]) -> list[int]:
        """The trials that this process runs; all processes together run all of them."""
        world = processes()
        return list(which)[dist.get_rank() if world > 1 else 0 :: world]

    def to_device(self, pair: Pair) -> Pair:
        return move(pair[0], self._device), to_device(pair[1], self._device)

    def run(self, which: Sequence[int], pair: Pair, number: int, step: Step) -> Iterator[tuple[int, Any, Any, int]]:
        """(trial, outputs, labels, number of images), part by part: the whole network, -1, then each trial."""
        inputs, labels = self.to_device(pair)
        count, mine = count_images(inputs), self.mine(which)
        size = self._staged.at_once if divisible(labels, count) else max(1, count)
        for start in range(0, count, size):
            part = slice(start, start + size)
            x, y = (inputs, labels) if count <= size else tree_map(lambda t: t[part], (inputs, labels))  # noqa: B023
            if self._first:
                self._first = False
                self._staged.agrees(x)
            whole, few = self._staged.whole(x), count_images(x)
            if self.task.check is not None:
                self.task.check(whole, y, number)
            yield -1, whole, y, few
            for done, i in enumerate(mine, 1):
                yield i, self._staged.without(*self.trials[i]), y, few
                step((start + few * done / len(mine)) / count)

    def values(self, outputs: Any, labels: Any, count: int) -> Floats:
        """The value of each image that units are ranked by; higher is better."""
        if not self.by_loss:
            return image_values(self.task.measured, outputs, labels, count).cpu().double().numpy()
        rows = (tree_map(lambda t: t[i : i + 1], (outputs, labels)) for i in range(count))  # noqa: B023
        return -torch.stack([mean_loss(self.task, *row) for row in rows]).cpu().double().numpy()


def _on_all_images(runner: _Runner, holdout: Batches, progress: Progress) -> list[TrialResult]:
    every, batches = range(len(runner.trials)), length_of(holdout)
    sums = [QualitySums(runner.task) for _ in range(len(every) + 1)]
    for number, pair in enumerate(_pairs(runner.task, holdout)):

        def step(share: float, number: int = number) -> None:
            total = None if batches is None else batches * len(every)
            progress(round((number + share) * len(every)), total)

        for i, outputs, labels, count in runner.run(every, pair, number, step):
            sums[i + 1].add(outputs, labels, count)
    if not sums[0].num_images:
        raise DataError(NO_IMAGES)
    figures = torch.zeros(len(every), 2, dtype=torch.float64)
    for i in runner.mine(every):
        evaluation = sums[i + 1].evaluation()
        figures[i] = torch.tensor([evaluation.quality, evaluation.loss], dtype=torch.float64)
    whole = sums[0].evaluation()
    rows = [(whole.quality, whole.loss), *add_up(figures).tolist()]
    return [TrialResult(q, loss, -loss if runner.by_loss else q, whole.num_images) for q, loss in rows]


def _race(
    runner: _Runner, holdout: Batches, k: int, settings: RankSettings, progress: Progress
) -> list[TrialResult] | None:
    """The whole network on all images, and trials on as many as it takes to find the k best; None if it is not possible
    to pick single images, or the loader might return them in another order the next time."""
    task, whole = runner.task, QualitySums(runner.task)
    values, margins, vectors = [], [], []
    for number, pair in enumerate(_pairs(task, holdout)):
        inputs, labels = runner.to_device(pair)
        count = count_images(inputs)
        if not count:
            continue
        one_number = isinstance(labels, Tensor) and labels.ndim == 1  # for each image: the order can be checked
        if not divisible(labels, count) or not (one_number or isinstance(holdout, list)):
            return None
        outputs = outputs_for(task, call(runner.model, tree_map(copied, inputs)), labels, number)
        whole.add(outputs, labels, count)
        values.append(runner.values(outputs, labels, count))
        if task.margins is not None:
            margins.append(task.margins(outputs, labels).abs().cpu().double().numpy())
        if one_number:
            vectors.append(labels.cpu().numpy())
    if not whole.num_images:
        raise DataError(NO_IMAGES)
    base, truth = np.concatenate(values), np.concatenate(vectors) if vectors else None
    losses, asked = np.zeros(len(runner.trials)), 0  # changes of the sum of losses

    def ask(units: Sequence[int], images: Places) -> Floats:
        nonlocal asked
        answers, change = np.zeros((len(units), len(images))), np.zeros(len(losses))
        row = {unit: i for i, unit in enumerate(units)}

        def step(share: float) -> None:
            progress(asked + round(share * len(images)), len(base))

        start, end, before = 0, 0, 0.0
        for pair in _picked(_pairs(task, holdout), images, truth):
            for i, outputs, labels, count in runner.run(units, pair, 0, step):
                loss = float(mean_loss(task, outputs, labels)) * count
                if i < 0:  # the whole network is the first to see a part
                    start, end, before = end, end + count, loss
                else:
                    answers[row[i], start:end] = runner.values(outputs, labels, count)
                    change[i] += loss - before
        asked += len(images)
        losses[:] += add_up(torch.from_numpy(change)).numpy()
        return add_up(torch.from_numpy(answers)).numpy()

    if runner.by_loss:
        order = np.argsort(base, kind="stable")  # a high loss changes most
    elif margins:
        order = np.argsort(np.concatenate(margins), kind="stable")
    else:
        order = np.random.default_rng(settings.seed).permutation(len(base))
    limits = {"confidence": settings.confidence, "tolerance": settings.tolerance}
    raced, seen = race(base, order, ask, len(runner.trials), k, **limits, seed=settings.seed)
    progress(len(base), len(base))
    mean = whole.evaluation()
    results = [TrialResult(mean.quality, mean.loss, float(base.mean()), len(base))]
    for value, change, count in zip(raced.tolist(), losses.tolist(), seen.tolist(), strict=True):
        loss = -value if runner.by_loss else mean.loss + change / len(base)
        results.append(TrialResult(None if runner.by_loss else value, loss, value, count))
    return results


def _by_function(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    measure: Callable[[nn.Module, Batches], float],
    cut: Cut,
    progress: Progress,
) -> list[TrialResult]:
    """A user-provided measure of the network, whole and for each trial."""
    holdout = list(holdout) if iter(holdout) is holdout else holdout  # it is read once for each trial

    def result(what: str) -> TrialResult:
        answer = measure(graph.model, holdout)
        try:
            value = float(answer)
        except (TypeError, ValueError) as error:
            raise DecideError(f"your measure must return a number, but returned {type(answer).__name__}") from error
        if math.isnan(value):
            raise DecideError(f"your measure returned NaN for {what}, and units cannot be ranked by it")
        return TrialResult(None, None, value, 0)

    results = [result("the whole network")]
    for number, (unit, kept) in enumerate(trials, 1):
        with cut(unit, kept):
            results.append(result(f"unit {unit} cut to {len(kept)} channels"))
        progress(number, len(trials))
    return results


def _pairs(task: Task, loader: Iterable[Any]) -> Iterator[Pair]:
    return (unpack_for(task, batch, number) for number, batch in enumerate(loader))


def _in_memory(holdout: Batches) -> Batches:
    """A list of the batches, which a race reads many times; the loader itself if they do not fit in memory."""
    kept, size = [], 0
    for batch in holdout:
        kept.append(batch)
        size += sum(x.numel() * x.element_size() for x in tree_leaves(batch) if isinstance(x, Tensor))
        if size > KEPT_BYTES and iter(holdout) is not holdout:
            return holdout
    return kept


def _picked(pairs: Iterable[Pair], wanted: Places, truth: Places | None) -> list[Pair]:
    """The images at these places (ascending), in one batch; in several if they differ in size.

    truth: the labels of all images as they were read first, if each is a number.
    """
    start, parts = 0, []
    for inputs, labels in pairs:
        count = count_images(inputs)
        here = torch.from_numpy(wanted[(wanted >= start) & (wanted < start + count)] - start)
        if len(here):
            parts.append(tree_map(lambda x: x[here] if isinstance(x, Tensor) else x, (inputs, labels)))  # noqa: B023
        start += count
    if truth is not None and not np.array_equal(
        torch.cat([labels for _, labels in parts]).cpu().numpy(), truth[wanted]
    ):
        raise DataError(
            "the held-out loader returns its images in a different order each time, and a race needs the same order: "
            "turn shuffling off, or pass exact=True"
        )
    try:
        return [tree_map(lambda *each: torch.cat(each) if isinstance(each[0], Tensor) else each[0], *parts)]
    except RuntimeError:
        return parts
