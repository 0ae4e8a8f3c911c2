"""Class moments of every channel of every unit, in one forward pass over images, as a rule labelled ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import DataError, ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Indices, Reader
from prunus.scoring.metrics import Where
from prunus.scoring.moments import (
    Accumulator,
    ClassMoments,
    ClassSums,
    ImageSums,
    LabelMoments,
    RowSums,
    image_sums,
    row_sums,
    to_image_sums,
)
from prunus.scoring.passes import sampled, walk
from prunus.scoring.taps import Taps, gather, locate_taps, merged, watched
from prunus.tasks import Task, task_of
from prunus.util.batches import Batches
from prunus.util.processes import add_up, all_or_none, check_even
from prunus.util.progress import Progress

logger = logging.getLogger(__name__)

NAMED = 10  # number of classes that a message names
POOLS: Mapping[int, Any] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


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

    The model, its mode, its hooks and the random generators are left as they were, on errors too.

    Args:
        graph: The traced network.
        loader: Batches of (images, labels), tuples or dicts; under torchrun each process passes its own share.
        num_images: A new stratified sample of this many images instead of all images; `seed` makes it reproducible.
        tap: "reader" is the tensor that enters the layers that read the unit; "before_activation" the tensor in front
            of the activation before them, if there is one (`Statistics.notes` says where there is none).
        seed: Seed of the sample.
        task: What the network is for; its labels say which classes there are (docs/tasks.md).
        classes: False: moments of all images together are enough, so that batches may be images alone.
        progress: Called with the batches done and the number of batches.
    """
    places = locate_taps(graph, tap)
    chosen = task_of(task)
    gatherer = _Gatherer(places.taps, chosen, classes)
    with watched(graph, places, gatherer.see) as owners:
        batches = sampled(loader, num_images, seed, chosen)
        how: dict[str, Any] = {"before": gatherer.before, "labelled": classes, "task": chosen, "progress": progress}
        total = all_or_none(lambda: walk(graph, batches, gatherer.after, **how))
    check_even(total)
    present, moments = gatherer.finish()
    units: dict[str, list[TapMoments]] = {name: [] for name in graph.units}
    for name, slots in merged(places.taps, owners).items():
        for slot in slots:
            of_slot, inputs = moments[name, slot.key], slot.inputs[:, 0]
            if not slot.key and not np.array_equal(inputs, np.arange(of_slot.channels)):
                of_slot = of_slot.select(torch.from_numpy(inputs))
            units[slot.unit].append(TapMoments(slot.channels, slot.readers, of_slot))
    taps = {name: tuple(parts) for name, parts in units.items()}
    return Statistics(int(add_up(torch.tensor(float(total)))), present, taps, places.notes)


def usable_classes(images: Sequence[int]) -> tuple[int, ...]:
    """Classes with at least two images, given the number of images of each. Fewer than two classes are an error."""
    kept = tuple(c for c, n in enumerate(images) if n >= 2)
    left_out = []
    for count, what in ((0, "without images"), (1, "with one image")):
        few = [c for c, n in enumerate(images) if n == count]
        if few:
            more = f" and {len(few) - NAMED} more" if len(few) > NAMED else ""
            left_out.append(f"class{'es' if len(few) > 1 else ''} {', '.join(map(str, few[:NAMED]))}{more} {what}")
    if len(kept) < 2:
        why = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise ScoreError(
            f"scores need at least two classes with two images each, and there {'is one' if kept else 'is none'}{why}. "
            "Use more images, or shuffle them before taking the first ones"
        )
    if left_out:
        logger.warning("left out of the scores: %s", ", ".join(left_out))
    return kept


@dataclass(frozen=True, eq=False)
class Members:
    """Which images or pixels of a batch belong to which row of the moments: a class, or a label present or absent."""

    rows: Tensor  # [k] numbers of the rows
    weights: Tensor  # [k, N] 1 for an image of the row; where pixels are classified, how many of its pixels
    num_images: Tensor  # [k]
    pixels: Tensor | None = None  # [N, k, ...] 1 for a pixel of the row
    several: bool = False  # labels, of which an image may have several: rows with each label, then without
    _shares: dict[torch.Size, Tensor] = field(default_factory=dict)  # `pixels` by the size of a map

    @classmethod
    def of(cls, classes: Any) -> Members:
        """From whole numbers [N], or [N, ...] for pixels, where negative ones are ignored; or True and False [N, L]."""
        if not isinstance(classes, Tensor) or not classes.ndim:
            raise DataError("the classes of a task must be a tensor; see prunus.Task")
        classes = classes.detach().cpu()
        if classes.is_floating_point():
            raise DataError(f"the classes of a task must be whole numbers, or True and False, not {classes.dtype}")
        if classes.dtype == torch.bool:
            weights = torch.cat([classes, ~classes], 1).T.double()
            return cls(torch.arange(len(weights)), weights, weights.sum(1), several=True)
        if classes.ndim == 1:
            counted = (classes >= 0).nonzero()[:, 0]
            present, row = torch.unique(classes[counted], return_inverse=True)
            weights = torch.zeros(len(present), len(classes), dtype=torch.float64)
            weights[row, counted] = 1
            return cls(present, weights, weights.sum(1))
        rows = max(1, int(classes.max()) + 1) if classes.numel() else 1
        pixels = F.one_hot(classes.long().clamp(min=0), rows).movedim(-1, 1) * (classes >= 0).unsqueeze(1)
        weights = pixels.flatten(2).sum(2).T.double()
        return cls(torch.arange(rows), weights, weights.gt(0).double().sum(1), pixels.double())

    @property
    def count(self) -> int:
        return self.weights.shape[1]

    def sums_of_images(self, images: ImageSums) -> ClassSums:
        """From sums over whole images. The positions of a map share the pixels of its image equally."""
        count, total, squares = self.weights.sum(1)[:, None] * images.positions, images.total, images.squares
        if self.pixels is not None:
            count = self.weights.sum(1)[:, None].expand(-1, len(images.positions))
            total, squares = total / images.positions, squares / images.positions
        return ClassSums(self.rows, self.num_images, count, self.weights @ total, self.weights @ squares)

    def classify(self, x: Tensor) -> bool:
        """Whether each position of x [N, C, ...] is a part of the image, whose pixels are classified."""
        return self.pixels is not None and x.ndim == self.pixels.ndim

    def sums_of_pixels(self, x: Tensor) -> ClassSums:
        """From x [N, C, ...]: each position stands for the pixels of its area."""
        assert self.pixels is not None
        size, pixels = x.shape[2:], self.pixels.shape[2:]
        if size not in self._shares:
            shares = self.pixels if pixels == size else POOLS[len(size)](self.pixels, size)
            self._shares[size] = shares.flatten(2) * (pixels.numel() / size.numel())
        weights = self._shares[size]  # [N, k, P]
        values = x.detach().cpu().double().flatten(2).transpose(1, 2)  # [N, P, C]
        count = weights.sum((0, 2))[:, None].expand(-1, x.shape[1])
        total, squares = (weights @ values).sum(0), (weights @ values.square()).sum(0)
        return ClassSums(self.rows, self.num_images, count, total, squares)


def class_moments(x: Tensor, labels: Tensor) -> ClassMoments:
    """The moments of x [N, C, ...] for images with these classes [N]."""
    accumulator = Accumulator([x.shape[1]])
    accumulator.add(Members.of(labels).sums_of_images(image_sums(x)))
    return accumulator.result()[0]


Part = tuple[str, bytes]  # a tap, and Slot.key: what is reduced there


class _Gatherer:
    """Keeps what the taps show until a batch is done, then adds it to the running moments.

    Rows of the moments are classes. If an image has one class, its checked label says it when the batch is done. Other
    tasks say before the batch runs which images or pixels belong to which row. Without classes there is one row.
    """

    def __init__(self, taps: Taps, task: Task, classes: bool) -> None:
        self._by_label = task.label_kind == "classes"
        self._by_task = classes and not self._by_label
        if self._by_task and task.classes is None:
            raise ScoreError(
                f"the labels of the task {task.name or 'given'} are no classes, which this metric separates. Use a "
                "metric that needs none, such as reader_energy, act_variance or rebuilt; or give the task classes=, as "
                "prunus.regression(bins=...) does"
            )
        self._taps, self._classes = taps, task.classes or (lambda labels: labels)
        self._needs = {name: {slot.key: slot for slot in slots} for name, slots in taps.items()}
        self._members: Members | None = None
        self._count: int | None = None  # images of the batch
        self._seen: dict[Part, RowSums | ClassSums] = {}  # of the batch, image by image; ClassSums of classified pixels
        self._parts: list[Part] = []
        self._moments: Accumulator | None = None

    def before(self, labels: Any, _count: int) -> None:
        self._members = Members.of(self._classes(labels)) if self._by_task else None
        self._count = None if self._members is None else self._members.count

    def see(self, name: str, x: Tensor) -> None:
        """Reduce the tensor at a tap: the whole axis once for all plain slots, and each pooled slot separately.

        The positions of all calls of a layer count.
        """
        self._count = len(x) if self._count is None else self._count
        self._check_count(name, len(x))
        for key, slot in self._needs[name].items():
            sums: Any
            if self._members is not None and not key and self._members.classify(x):
                sums = self._members.sums_of_pixels(x)
            else:
                sums = row_sums(gather(x, slot) if key else x)
            earlier = self._seen.get((name, key))
            self._seen[name, key] = sums if earlier is None else earlier.plus(sums)

    def after(self, batch: int, labels: Any, outputs: Any) -> None:
        """Add the batch to the running moments."""
        seen, self._seen = self._seen, {}
        if self._moments is None:
            self._parts = sorted(seen, key=lambda part: isinstance(seen[part], ClassSums))
            self._by_label = self._by_label and labels is not None
            widths = [seen[part].total.shape[1] for part in self._parts]
            logits = self._by_label and isinstance(outputs, Tensor) and outputs.ndim > 1
            self._moments = Accumulator(widths, outputs.shape[1] if logits else 0)
        if seen.keys() != set(self._parts):
            odd = sorted({name for name, _ in seen.keys() ^ set(self._parts)})
            raise ScoreError(f"batch {batch} runs through other layers than the first batch: {', '.join(odd)}")
        if self._members is None:
            known = self._by_label and labels is not None
            self._members = Members.of(
                self._classes(labels) if known else torch.zeros(self._count or 0, dtype=torch.int64)
            )
            self._check_count(self._parts[0][0], self._members.count)
        ordered = [seen[part] for part in self._parts]
        rows = [each for each in ordered if isinstance(each, RowSums)]
        sums = [self._members.sums_of_images(to_image_sums(rows))] if rows else []
        sums += [each for each in ordered if isinstance(each, ClassSums)]
        columns = zip(*((each.count, each.total, each.squares) for each in sums), strict=True)
        whole = ClassSums(self._members.rows, self._members.num_images, *(torch.cat(part, 1) for part in columns))
        good = torch.isfinite(whole.squares.sum(0))  # [C]
        if not bool(good.all()):
            number, column = self._moments.place(int((~good).nonzero()[0, 0]))
            name, key = self._parts[number]
            slots = self._taps[name]
            mine = [slot.unit for slot in slots if slot.key == key and (key or column in slot.inputs)]
            units = " and ".join(dict.fromkeys(mine or [slot.unit for slot in slots]))
            raise ScoreError(
                f"batch {batch}: activations of unit {units} that enter {name} are NaN, infinite or too large to "
                "square; check the images and the weights"
            )
        self._moments.add(whole)

    def finish(self) -> tuple[tuple[int, ...], dict[Part, ClassMoments]]:
        """The usable classes or labels, and the moments of each part, merged over all processes."""
        moments = self._moments
        assert moments is not None and self._members is not None  # there was at least one image
        moments.merge_processes()
        images = moments.num_images.tolist()
        if not self._members.several:
            usable = usable_classes(images) if self._by_label or self._by_task else (0,)
            return usable, dict(zip(self._parts, moments.result(usable), strict=True))
        half = len(images) // 2  # the rows of images without each label
        usable = tuple(i for i in range(half) if min(images[i], images[half + i]) >= 2)
        if not usable:
            raise ScoreError("no label is present in two images and absent in two: use more images")
        there, without = moments.result(usable), moments.result([half + i for i in usable])
        both = [LabelMoments(a.num_images, a.count, a.mean, a.m2, b) for a, b in zip(there, without, strict=True)]
        return usable, dict(zip(self._parts, both, strict=True))

    def _check_count(self, name: str, count: int) -> None:
        if count != self._count:
            raise ScoreError(f"{name} is called with another number of images than the network; it cannot be scored")
