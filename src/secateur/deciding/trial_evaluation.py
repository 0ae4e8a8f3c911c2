"""Trials: one unit at a time loses channels, and held-out images say how much that hurts.

All images are read for all trials, or trials race (`secateur.deciding.racing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.batches import Batches, call, check_range, device_of, logits_of, move, unpack
from secateur.base.distributed import add_up
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.deciding.racing import Floats, Places, race
from secateur.errors import DataError
from secateur.measuring.partial_forward import Cut, Staged

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
