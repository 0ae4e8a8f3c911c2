"""Statistics of every unit from one pass over the data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from prunus.errors import DataError, ScoreError
from prunus.graph.units import Indices, Reader
from prunus.score.moments import ClassMoments, ImageSums, Triple, combine
from prunus.score.taps import Tap, gather
from prunus.tasks import Task
from prunus.util.processes import processes

log = logging.getLogger(__name__)
NAMED = 10  # number of classes that a message names


@dataclass(frozen=True, eq=False)
class TapMoments:
    """Moments of some or all of a unit's channels in the tensor that enters some of its readers."""

    channels: Indices  # [n]
    readers: tuple[Reader, ...]
    moments: ClassMoments  # [K, n]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Class moments of every unit at each of its taps. Classes with fewer than two images are left out."""

    num_images: int
    classes: tuple[int, ...]
    units: Mapping[str, tuple[TapMoments, ...]]
    notes: tuple[str, ...] = ()


def usable_classes(images: Sequence[int]) -> tuple[int, ...]:
    """Classes with at least two images, given the number of images of each. Fewer than two classes are an error."""
    kept = tuple(c for c, n in enumerate(images) if n >= 2)
    none = [c for c, n in enumerate(images) if n == 0]
    one = [c for c, n in enumerate(images) if n == 1]
    left_out = [
        f"{_named(which)} {words}" for which, words in ((none, "without images"), (one, "with one image")) if which
    ]
    if len(kept) < 2:
        why = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise ScoreError(
            f"scores need at least two classes with two images each, and there {'is one' if kept else 'is none'}{why}. "
            "Use more images, or shuffle them before taking the first ones"
        )
    if left_out:
        log.warning("left out of the scores: %s", ", ".join(left_out))
    return kept


def _named(classes: Sequence[int]) -> str:
    rest = f" and {len(classes) - NAMED} more" if len(classes) > NAMED else ""
    return f"class{'es' if len(classes) > 1 else ''} {', '.join(map(str, classes[:NAMED]))}{rest}"


# Sums of every channel of every image: the only step of the pass that reads whole activations.

# A float32 row is recomputed if its squared deviations are less than this fraction of its sum of squares: there the
# difference of the two has fewer than about 5 correct digits.
DOUBTFUL = 1e-2
CHUNK = 1 << 19  # elements per chunk: 2 MB of float32
LONG = 4096  # most elements of a row, if it can be divided


@dataclass(frozen=True, eq=False)
class Recomputed:
    """Rows that were computed in float64: their images and channels [R], their mean and m2 [R]."""

    image: Tensor
    channel: Tensor
    mean: Tensor
    m2: Tensor


@dataclass(frozen=True, eq=False)
class RowSums:
    """What is kept of one tensor [N, C, ...] until the batch is done."""

    positions: int
    total: Tensor  # [N, C] sum over positions
    norm: Tensor  # [N, C] square root of the sum of squares
    recomputed: Recomputed | None = None


def reduce(x: Tensor) -> RowSums:
    """Sums of x [N, C, ...] over all positions of a channel."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    positions = x.shape[2:].numel()
    if positions == 1:
        total = x.reshape(x.shape[:2]).clone()  # a view would change with the network's in-place operations
        return RowSums(1, total, total.abs())
    if x.device.type != "cpu":
        return _by_welford(x, positions)
    total, norm = _sums(x)  # [N, C] each
    if x.dtype == torch.float64:
        return RowSums(positions, total, norm)
    share = 1 / (positions * (1 - DOUBTFUL))
    margin = torch.addcmul(norm.square(), total, total, value=-share)  # [N, C] below 0: too few digits
    return RowSums(positions, total, norm, _recompute(x, margin < 0) if margin.amin().item() < 0 else None)


def together(one: RowSums, other: RowSums) -> RowSums:
    """The sums over the positions of both tensors, which have the same images and channels."""
    a, b = to_sums([one]), to_sums([other])
    return RowSums(one.positions + other.positions, a.total + b.total, (a.squares + b.squares).sqrt_())


def to_sums(parts: Sequence[RowSums]) -> ImageSums:
    """All parts side by side in float64."""
    sizes = [part.total.shape[1] for part in parts]
    positions = torch.tensor([part.positions for part in parts], dtype=torch.float64)
    total = torch.cat([part.total.cpu() for part in parts], 1).double()  # [N, C]
    squares = torch.cat([part.norm.cpu() for part in parts], 1).double().square_()  # [N, C]
    start = 0
    for size, part in zip(sizes, parts, strict=True):
        if part.recomputed is not None:
            fix = part.recomputed
            where = (fix.image, start + fix.channel)
            total[where] = fix.mean * part.positions
            squares[where] = fix.m2 + fix.mean.square() * part.positions
        start += size
    return ImageSums(positions.repeat_interleave(torch.tensor(sizes)), total, squares)


def image_sums(x: Tensor) -> ImageSums:
    """Sum and sum of squares of each channel of each image of x [N, C, ...], in float64."""
    return to_sums([reduce(x)])


def _by_welford(x: Tensor, positions: int) -> RowSums:
    """One stable kernel. All of its rows are given as recomputed ones."""
    variance, mean = torch.var_mean(x.flatten(2), dim=2, correction=0)  # [N, C] each
    mean, variance = mean.cpu().double(), variance.cpu().double()
    image, channel = torch.ones_like(mean, dtype=torch.bool).nonzero(as_tuple=True)
    return RowSums(positions, mean, mean, Recomputed(image, channel, mean.flatten(), variance.flatten() * positions))


def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and 2-norm per image and channel, [N, C] each."""
    images, channels = x.shape[:2]
    if x.stride(1) < x.stride(-1) and channels > 1:  # channels-last memory, where torch's norm is slow
        rows = x.movedim(1, -1).reshape(images, -1, channels)  # [N, P, C]
        return _in_chunks(rows, CHUNK // 4, lambda c: (c.sum(1), c.square().sum(1).sqrt_()))
    pieces = _pieces(x.shape[2:].numel())
    rows = x.reshape(images * channels * pieces, -1)  # [N C pieces, P / pieces]
    total, norm = _in_chunks(rows, CHUNK, lambda c: (c.sum(1), torch.linalg.vector_norm(c, dim=1)))
    if pieces > 1:
        total = total.view(-1, pieces).sum(1)
        norm = torch.linalg.vector_norm(norm.view(-1, pieces), dim=1)
    return total.view(images, channels), norm.view(images, channels)


def _pieces(positions: int) -> int:
    """Number of equal pieces in which a long row is summed.

    torch's norm adds numbers one after the other, and with 100,000 float32 numbers it loses a digit.
    """
    return next((q for q in range(1, 65) if positions % q == 0 and positions // q <= LONG), 1)


def _in_chunks(rows: Tensor, size: int, sums: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """`sums` of chunks of whole rows with about `size` elements, from the last chunk to the first."""
    step = max(1, size // rows[0].numel())
    if step >= len(rows):
        return sums(rows)
    parts = [sums(chunk) for chunk in reversed(torch.split(rows, step))]
    return torch.cat([total for total, _ in reversed(parts)]), torch.cat([norm for _, norm in reversed(parts)])


def _recompute(x: Tensor, doubtful: Tensor) -> Recomputed:
    """The doubtful rows, computed by two passes in float64."""
    image, channel = doubtful.nonzero(as_tuple=True)  # [R] each
    step = max(1, CHUNK // x[0, 0].numel())
    means, m2s = [], []
    for i, c in zip(torch.split(image, step), torch.split(channel, step), strict=True):
        row = x[i, c].flatten(1).double()  # [r, P]
        centre = row.mean(1)
        means.append(centre)
        m2s.append((row - centre[:, None]).square().sum(1))
    return Recomputed(image, channel, torch.cat(means), torch.cat(m2s))


# Class moments for labels other than one class per image: several labels per image, or a class for each pixel.

Part = tuple[str, bytes]  # a tap, and Slot.key: what is reduced there
POOLS: Mapping[int, Any] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


@dataclass(frozen=True, eq=False)
class LabelMoments(ClassMoments):
    """Moments of the images that have each label; `rest` are those of the images without it."""

    without: ClassMoments

    @cached_property
    def rest(self) -> ClassMoments:
        """For each label the moments of the images without it."""
        return self.without

    def total(self) -> Triple:
        """(count [], mean [C], m2 [C]) of all images: any label's two groups together."""
        return combine(
            (self.count[0], self.mean[0], self.m2[0]), (self.without.count[0], self.without.mean[0], self.without.m2[0])
        )

    def select(self, channels: Tensor) -> LabelMoments:
        """The moments of some of the channels."""
        mine = super().select(channels)
        return LabelMoments(mine.num_images, mine.count, mine.mean, mine.m2, self.without.select(channels))


class TaskGatherer:
    """Adds what the taps show to the running moments, batch by batch. `before` comes first, with the batch's labels."""

    def __init__(self, taps: Mapping[str, Tap], task: Task) -> None:
        self._needs = {name: list(tap.needs().items()) for name, tap in taps.items()}
        self._task = task
        self._members = _Members(torch.zeros(0, 0))
        self._moments: dict[Part, ClassMoments] = {}
        self._images = torch.zeros(0, dtype=torch.float64)  # [R] images of each row
        self.num_images = 0

    def before(self, labels: Any) -> None:
        """The labels of the batch that runs next."""
        assert self._task.classes is not None
        self._members = _Members.of(self._task.classes(labels))

    def see(self, name: str, x: Tensor) -> None:
        """Add the tensor at a tap: the whole axis once for all plain slots, and each pooled slot separately."""
        for key, slot in self._needs[name]:
            fresh = self._members.moments(gather(x, slot) if key else x, in_place=not key)
            if not bool(torch.isfinite(fresh.m2).all()):
                raise ScoreError(
                    f"activations that enter {name} are NaN, infinite or too large to square; check the images and "
                    "the weights"
                )
            before = self._moments.get((name, key))
            self._moments[name, key] = fresh if before is None else _merged(before, fresh)

    def after(self, _batch: int, _labels: Any, _outputs: Any) -> None:
        """Count the images of the batch that is done."""
        there = self._members.images()
        rows = max(len(there), len(self._images))
        self._images = _padded(self._images, rows) + _padded(there, rows)
        self.num_images += self._members.num_images

    def finish(self) -> tuple[tuple[int, ...], dict[Part, ClassMoments]]:
        """The usable classes or labels, and the moments of each part, merged over all processes."""
        if processes() > 1:
            self._merge_processes()
        if self._members.kind == "labels":
            return self._finished_labels()
        classes = usable_classes([int(n) for n in self._images])
        return classes, {part: self._rows(moments, classes) for part, moments in self._moments.items()}

    def _finished_labels(self) -> tuple[tuple[int, ...], dict[Part, ClassMoments]]:
        half = len(self._images) // 2
        usable = [i for i in range(half) if min(self._images[i], self._images[half + i]) >= 2]
        if not usable:
            raise ScoreError("no label is present in two images and absent in two: use more images")
        found: dict[Part, ClassMoments] = {}
        for part, moments in self._moments.items():
            there = self._rows(moments, usable)
            without = self._rows(moments, [half + i for i in usable])
            found[part] = LabelMoments(there.num_images, there.count, there.mean, there.m2, without)
        return tuple(usable), found

    def _rows(self, moments: ClassMoments, rows: Any) -> ClassMoments:
        chosen = _grown(moments, len(self._images)).of_classes(list(rows))
        return ClassMoments(self._images[list(rows)], chosen.count, chosen.mean, chosen.m2)

    def _merge_processes(self) -> None:
        everyone: list[Any] = [None] * processes()
        dist.all_gather_object(everyone, (self._moments, self._images, self.num_images))
        rows = max(len(images) for _, images, _ in everyone)
        self._images = torch.stack([_padded(images, rows) for _, images, _ in everyone]).sum(0)
        self.num_images = sum(count for _, _, count in everyone)
        self._moments = everyone[0][0]
        for moments, _, _ in everyone[1:]:
            self._moments = {part: _merged(mine, moments[part]) for part, mine in self._moments.items()}


class _Members:
    """Which samples of a batch belong to which row: a class, or a label that is present or absent."""

    def __init__(self, weights: Tensor, kind: str = "classes") -> None:
        """weights: [N, R] for each image, or [N, R, ...] for each of its pixels."""
        self._weights, self.kind = weights.double(), kind
        self._sized: dict[torch.Size, Tensor] = {}

    @classmethod
    def of(cls, classes: Tensor) -> _Members:
        """From whole numbers [N] or [N, ...], or from True and False [N, L]."""
        if not isinstance(classes, Tensor) or not classes.ndim:
            raise DataError("the classes of a task must be a tensor; see prunus.Task")
        classes = classes.detach().cpu()
        if classes.dtype == torch.bool:
            return cls(torch.cat([classes, ~classes], 1), "labels")
        if classes.is_floating_point():
            raise DataError(f"the classes of a task must be whole numbers, or True and False, not {classes.dtype}")
        rows = max(1, int(classes.max()) + 1) if classes.numel() else 1
        spread = F.one_hot(classes.long().clamp(min=0), rows).movedim(-1, 1)  # [N, R, ...]
        return cls(spread * (classes >= 0).unsqueeze(1))

    @property
    def num_images(self) -> int:
        """Images of the batch."""
        return len(self._weights)

    def images(self) -> Tensor:
        """[R] images that have a sample in the row."""
        return (self._weights.flatten(2).amax(2) if self._weights.ndim > 2 else self._weights).gt(0).double().sum(0)

    def moments(self, x: Tensor, in_place: bool) -> ClassMoments:
        """The moments of x [N, C, ...], whose positions are those of the image if `in_place`."""
        if len(x) != len(self._weights):
            raise ScoreError("a layer is called with another number of images than the network; it cannot be scored")
        if in_place and self._weights.ndim > 2 and x.ndim == self._weights.ndim:
            weights = self._at(x.shape[2:])  # [N, R, P]
            values = x.detach().cpu().double().flatten(2).transpose(1, 2)  # [N, P, C]
            count = weights.sum((0, 2))
            return _moments(count, (weights @ values).sum(0), (weights @ values.square()).sum(0))
        sums = image_sums(x.detach())
        weights = self._whole(float(sums.positions[0]))  # [N, R]
        return _moments(weights.sum(0) * sums.positions[0], weights.T @ sums.total, weights.T @ sums.squares)

    def _at(self, size: torch.Size) -> Tensor:
        """[N, R, P]: the pixels of each position's area that belong to the row."""
        if size not in self._sized:
            pixels = self._weights.shape[2:]
            shares = self._weights if pixels == size else POOLS[len(size)](self._weights, size)
            self._sized[size] = shares.flatten(2) * (pixels.numel() / size.numel())
        return self._sized[size]

    def _whole(self, positions: float) -> Tensor:
        """[N, R]: whether an image belongs to the row, or its pixels that do, shared among the positions."""
        return self._weights.flatten(2).sum(2) / positions if self._weights.ndim > 2 else self._weights


def _moments(count: Tensor, total: Tensor, squares: Tensor) -> ClassMoments:
    mean = total / count.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    m2 = (squares - total * mean).clamp(min=0)
    return ClassMoments(torch.zeros_like(count), count, mean, m2)


def _merged(a: ClassMoments, b: ClassMoments) -> ClassMoments:
    """The moments of both. Counts may be fractions here, so that `ClassMoments.merge` would not do."""
    rows = max(a.classes, b.classes)
    a, b = _grown(a, rows), _grown(b, rows)
    count = a.count + b.count
    share = b.count / count.clamp(min=torch.finfo(torch.float64).tiny)
    delta = b.mean - a.mean
    m2 = a.m2 + b.m2 + delta.square() * (a.count * share)[:, None]
    return ClassMoments(a.num_images, count, a.mean + delta * share[:, None], m2)


def _grown(moments: ClassMoments, rows: int) -> ClassMoments:
    """The same with empty rows for classes that were first seen later."""
    if moments.classes == rows:
        return moments
    return ClassMoments(*(_padded(t, rows) for t in (moments.num_images, moments.count, moments.mean, moments.m2)))


def _padded(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows - len(values), *values.shape[1:])])
