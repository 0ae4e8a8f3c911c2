"""Units race: the images that decide come first, and what is settled is not looked at again.

An image that the whole network is sure of hardly ever changes sides when a unit loses a few channels. So images are
taken in the order of the margin between the two highest logits, least sure first, in chunks. After each chunk the
rest is extrapolated: a unit's further change per image is taken to shrink as it did from the last chunk to this one,
with the spread of the last chunk. From draws of all units' final values it is read off how far the k best found may
be from the true k best; when that is within the tolerance at the stated confidence, the race ends. Units that are
among the k best in none of the draws drop out on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from secateur.channels.graph import ChannelGraph
from secateur.deciding.staged import Staged
from secateur.errors import DataError, DecideError
from secateur.measuring.batches import Batches, call, check_range, device_of, logits_of, move, unpack
from secateur.scoring.together import add_up

Floats = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

CHUNKS = 20  # parts into which the held-out images are cut for the race
SMALLEST_CHUNK = 50
DRAWS = 400


@dataclass(frozen=True)
class Trial:
    """A unit and the channels that it keeps."""

    unit: str
    removed: int
    kept: list[int]

    @property
    def key(self) -> tuple[str, int]:
        """What tells trials apart."""
        return self.unit, self.removed


@dataclass(frozen=True)
class Judged:
    """What held-out images say of a network. `value` is what units are ranked by; higher is better."""

    accuracy: float | None
    loss: float | None
    value: float
    images: int


@dataclass(frozen=True)
class _Answers:
    """Per image: 1 where the network is right, its cross-entropy, and the margin of its two highest logits."""

    right: Floats
    loss: Floats
    margin: Floats

    def value(self, measure: str) -> Floats:
        return self.right if measure == "accuracy" else -self.loss


def judge_all(
    graph: ChannelGraph, trials: Sequence[Trial], holdout: Batches, measure: str, progress: Progress | None
) -> tuple[Judged, list[Judged]]:
    """All trials on all held-out images."""
    staged = Staged(graph)
    base: list[_Answers] = []
    sums = np.zeros((len(trials), 2))
    images = 0
    total = _length(holdout)
    for number, (inputs, labels) in enumerate(_batches(graph, holdout)):
        if number == 0:
            staged.agrees(inputs)
        logits = staged.whole(inputs)
        check_range(labels.cpu(), logits, number)
        base.append(_answers(logits, labels))
        images += len(labels)
        step = _advance(progress, number * len(trials), (total or number + 1) * len(trials))
        sums += _shared(trials, lambda trial: _sums(staged.without(trial.unit, trial.kept), labels), step)  # noqa: B023
    if not base:
        raise DataError("the held-out loader gave no images; pass at least one batch of (images, labels)")
    whole = _Answers(*(np.concatenate([getattr(b, f) for b in base]) for f in ("right", "loss", "margin")))
    judged = [_judged(right / images, loss / images, measure, images) for right, loss in sums]
    return _judged(float(whole.right.mean()), float(whole.loss.mean()), measure, images), judged


def race(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    measure: str,
    k: int,
    *,
    confidence: float,
    tolerance: float,
    seed: int,
    progress: Progress | None,
) -> tuple[Judged, list[Judged]]:
    """Trials on as many held-out images as it takes to find the k best."""
    if not 0.5 <= confidence < 1:
        raise DecideError(f"confidence must be at least 0.5 and below 1, got {confidence}")
    loader = list(holdout) if iter(holdout) is holdout else holdout
    base = _whole(graph, loader)
    order = np.argsort(base.margin, kind="stable")
    size = max(SMALLEST_CHUNK, -(-len(order) // CHUNKS))
    chunks = np.split(order, range(size, len(order), size))
    state = _Race(base.value(measure), len(trials), k, confidence, tolerance, seed)
    staged = Staged(graph)
    losses = np.zeros(len(trials))
    for number, chunk in enumerate(chunks):
        inputs, labels = _pick(graph, loader, chunk)
        if number == 0:
            staged.agrees(inputs)
        staged.whole(inputs)
        active = state.active()

        def answer(trial: Trial) -> Floats:
            got = _answers(staged.without(trial.unit, trial.kept), labels)  # noqa: B023
            return np.stack([got.value(measure), got.loss])

        step = _advance(progress, number * len(trials), len(chunks) * len(trials))
        got = _shared([trials[i] for i in active], answer, step, (2, len(labels)))
        losses[active] += (got[:, 1] - base.loss[np.sort(chunk)]).sum(axis=1)
        state.add(active, got[:, 0], np.sort(chunk))
        if state.settled():
            break
    if progress is not None:
        progress(1, 1)
    return _results(base, state, losses, measure)


def _results(base: _Answers, state: _Race, losses: Floats, measure: str) -> tuple[Judged, list[Judged]]:
    """Values of what was seen; for images that were not, what the race extrapolates."""
    n = len(base.right)
    whole = _judged(float(base.right.mean()), float(base.loss.mean()), measure, n)
    values = state.expected()
    judged = []
    for i, value in enumerate(values):
        loss = whole.loss + losses[i] / n if whole.loss is not None else None
        accuracy = float(value) if measure == "accuracy" else None
        judged.append(Judged(accuracy, loss if measure == "accuracy" else -float(value), float(value), state.seen[i]))
    return whole, judged


class _Race:
    """Running sums, extrapolation and the decision to stop."""

    def __init__(self, base: Floats, units: int, k: int, confidence: float, tolerance: float, seed: int) -> None:
        self.base, self.k = base, min(k, units)
        self.confidence, self.tolerance = confidence, tolerance
        self.random = np.random.default_rng(seed)
        self.change = np.zeros(units)  # sum of changes over the images seen
        self.seen = [0] * units
        self.rate = np.zeros(units)  # mean change per image in the last chunk
        self.spread = np.ones(units)  # its variance per image
        self.decay = 1.0
        self.in_race = np.ones(units, dtype=bool)

    def active(self) -> list[int]:
        """Units still in the race."""
        return np.flatnonzero(self.in_race).tolist()

    def add(self, units: Sequence[int], values: Floats, images: npt.NDArray[np.int64]) -> None:
        """What the units say of a chunk of images: values [units, images]."""
        difference = values - self.base[images]
        before = self.spread[list(units)].sum()
        first = self.seen[units[0]] == 0
        for row, unit in enumerate(units):
            self.change[unit] += difference[row].sum()
            self.seen[unit] += len(images)
            self.rate[unit] = difference[row].mean()
            self.spread[unit] = max(float((difference[row] ** 2).mean()), 0.5 / len(images))
        after = self.spread[list(units)].sum()
        self.decay = 1.0 if first else float(np.clip(after / before, 0.3, 1.0))
        self.chunk = len(images)

    def _left(self) -> tuple[Floats, Floats]:
        """Images left for each unit, and how much of the last chunk's rate they have on average."""
        left = np.array([len(self.base) - n for n in self.seen], dtype=np.float64)
        steps = np.maximum(1, np.ceil(left / self.chunk))
        powers = np.array([np.mean(self.decay ** np.arange(1, int(s) + 1)) for s in steps])
        return left, powers

    def expected(self) -> Floats:
        """Each unit's value over all images."""
        left, weight = self._left()
        return np.asarray(self.base.mean() + (self.change + left * weight * self.rate) / len(self.base))

    def settled(self) -> bool:
        """Whether the k best are known well enough; drops units that no longer can be among them."""
        left, weight = self._left()
        if not left[self.in_race].any() or self.in_race.sum() <= self.k:
            return True
        deviation = np.sqrt(left * weight * self.spread) / len(self.base)
        draws = self.expected() + deviation * self.random.standard_normal((DRAWS, len(self.change)))
        best = np.argpartition(-draws, self.k - 1, axis=1)[:, : self.k]
        reached = np.zeros(len(self.change), dtype=bool)
        reached[np.unique(best)] = True
        self.in_race &= reached
        chosen = np.argsort(-self.expected(), kind="stable")[: self.k]
        regret = np.take_along_axis(draws, best, axis=1).mean(axis=1) - draws[:, chosen].mean(axis=1)
        return bool(np.quantile(regret, self.confidence) <= self.tolerance)


# ------------------------------------------------------------------------------------------------ batches and answers


def _whole(graph: ChannelGraph, loader: Iterable[Any]) -> _Answers:
    parts = []
    for number, (inputs, labels) in enumerate(_batches(graph, loader)):
        logits = logits_of(call(graph.model, inputs))
        check_range(labels.cpu(), logits, number)
        parts.append(_answers(logits, labels))
    if not parts:
        raise DataError("the held-out loader gave no images; pass at least one batch of (images, labels)")
    return _Answers(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("right", "loss", "margin")))


def _batches(graph: ChannelGraph, loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    device = device_of(graph.model)
    for number, batch in enumerate(loader):
        images, labels = unpack(batch, number)
        yield move(images, device), labels.to(device)


def _pick(graph: ChannelGraph, loader: Iterable[Any], chosen: npt.NDArray[np.int64]) -> tuple[Any, Tensor]:
    """These images of the loader, in the loader's order."""
    wanted = np.sort(chosen)
    start, images, labels = 0, [], []
    for number, batch in enumerate(loader):
        inputs, answers = unpack(batch, number)
        here = torch.from_numpy(wanted[(wanted >= start) & (wanted < start + len(answers))] - start)
        if len(here):
            if not isinstance(inputs, Tensor):
                raise DataError("racing takes images as one tensor a batch; pass exact=True for several inputs")
            images.append(inputs[here])
            labels.append(answers[here])
        start += len(answers)
    device = device_of(graph.model)
    return move(torch.cat(images), device), torch.cat(labels).to(device)


def _answers(logits: Tensor, labels: Tensor) -> _Answers:
    top = logits.topk(min(2, logits.shape[1]), dim=1)
    margin = top.values[:, 0] - top.values[:, -1]
    right = (top.indices[:, 0] == labels).double()
    loss = F.cross_entropy(logits.double(), labels, reduction="none")
    return _Answers(right.cpu().numpy(), loss.cpu().numpy(), margin.double().cpu().numpy())


def _sums(logits: Tensor, labels: Tensor) -> Floats:
    answers = _answers(logits, labels)
    return np.array([answers.right.sum(), answers.loss.sum()])


def _judged(accuracy: float, loss: float, measure: str, images: int) -> Judged:
    return Judged(accuracy, loss, accuracy if measure == "accuracy" else -loss, images)


def _length(loader: Any) -> int | None:
    return len(loader) if hasattr(loader, "__len__") else None


def _advance(progress: Progress | None, done: int, total: int) -> Callable[[int], None]:
    def step(more: int) -> None:
        if progress is not None:
            progress(done + more, total)

    return step


def _shared(
    trials: Sequence[Trial],
    work: Callable[[Trial], Floats],
    step: Callable[[int], None],
    shape: tuple[int, ...] = (2,),
) -> Floats:
    """What `work` says of each trial, asked by one of the processes and known to all: [trials, *shape]."""
    together = dist.is_available() and dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    results = np.zeros((len(trials), *shape))
    for i in range(rank, len(trials), world):
        results[i] = work(trials[i])
        step(i + 1)
    return add_up(torch.from_numpy(results)).numpy()
