"""Passes over images: a loop over labelled batches, stratified samples of a loader, and unlabelled images in chunks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.data import DataLoader, Subset

from prunus.errors import DataError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.traced import as_call
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import outputs_for, unpack_for
from prunus.util.batches import (
    Batch,
    Batches,
    Ints,
    as_class_indices,
    call,
    check_batches,
    count_images,
    device_of,
    drawn,
    length_of,
    move,
    shares,
    to_device,
    unpack_any,
)
from prunus.util.processes import processes
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

logger = logging.getLogger(__name__)

After = Callable[[int, Any, Any], None]  # batch number, labels on the CPU, outputs that count: logits [N, K]


def walk(
    graph: ChannelGraph,
    loader: Batches,
    after: After,
    *,
    before: Callable[[Any, int], None] | None = None,
    gradients: bool = False,
    labelled: bool = True,
    progress: Progress | None = None,
    task: Task | None = None,
) -> int:
    """Run the graph's model on every batch in eval mode, and leave all state as it was. Returns the number of images.

    Args:
        after: Called when a batch is done and its labels are checked.
        before: Called with the labels and the number of images of each batch, before it runs.
        gradients: The images require gradients, so that every activation has one even if all parameters are frozen.
        labelled: False: batches may be images alone, whose labels are None, and outputs are not looked at.
    """
    check_batches(loader, "loader")
    model, total, images_seen = graph.model, length_of(loader), 0
    home, task = device_of(model), task_of(task)
    with evaluating(model), generators_kept(), torch.inference_mode(False), torch.set_grad_enabled(gradients):
        for index, batch in enumerate(loader):
            images, labels = unpack_for(task, batch, index, labelled)
            count = count_images(images)
            if not count:
                continue
            images = move(images, home)
            if before is not None:
                before(labels, count)
            if gradients:
                images = tree_map(lambda t: t.detach().clone().requires_grad_() if t.is_floating_point() else t, images)
            outputs = call(model, images)
            if labels is not None and (labelled or task.label_kind == "classes"):
                outputs = outputs_for(task, outputs, labels, index)
            after(index, to_device(labels, torch.device("cpu")), outputs)
            images_seen += count
            if progress is not None:
                progress(index + 1, total)
    if images_seen == 0:
        raise DataError("there is nothing to score on: the loader gave no images; check the part, split and limit")
    return images_seen


def sampled(loader: Batches, num_images: int | None, seed: int | None = None, task: Task | None = None) -> Batches:
    """Batches of a stratified sample of `num_images` images; the loader itself if `num_images` is None.

    Without one class per image (another task than classification, or no labels) all images are one stratum. With
    several processes, each draws its part of the sample from its own share of the images.
    """
    return loader if num_images is None else Sample(loader, num_images // processes(), seed, task=task).batches()


class Sample:
    """A sample of the images of a loader. Of `sizes` images per class, `quotas` are chosen.

    Args:
        num_images: How many images to choose; None: all.
        seed: None draws a new sample; within one Sample every reading gives the same images.
        balanced: Choose the same number of every class instead of each class's share; small classes give all they have.
        labelled: A batch without labels is an error; otherwise all images are one class where there are none.
    """

    def __init__(
        self,
        loader: Batches,
        num_images: int | None,
        seed: int | None = None,
        *,
        balanced: bool = False,
        labelled: bool = False,
        task: Task | None = None,
    ) -> None:
        if num_images is not None and num_images < 2:
            raise DataError(f"a sample must have at least 2 images for each process, got {num_images}")
        if isinstance(loader, Iterator):
            raise DataError(
                "a sample needs a loader that can be read twice, not a generator: pass a list of batches or a "
                "DataLoader, or num_images=None to use all of its images"
            )
        self._loader, self._all, self._task = loader, num_images is None, task_of(task)
        self._entropy = np.random.SeedSequence(seed).entropy
        self._places: Ints | None = None  # in the data set, of the images that a DataLoader reads, and their labels
        self._labels = np.zeros(0, dtype=np.int64)
        if isinstance(loader, DataLoader) and loader.batch_sampler is not None:
            labels = _labels_of(loader.dataset, self._task)
            if labels is not None:
                with generators_kept():
                    self._places = np.array([i for batch in loader.batch_sampler for i in batch], dtype=np.int64)
                self._labels = labels[self._places]
        if self._places is not None:
            self.sizes = np.bincount(self._labels)
        else:  # the loader is read once
            self.sizes = np.zeros(0, dtype=np.int64)
            for index, batch in enumerate(loader):
                counts = np.bincount(self._classes(batch, index, labelled), minlength=len(self.sizes))
                counts[: len(self.sizes)] += self.sizes
                self.sizes = counts
        if self.sizes.sum() == 0:
            raise DataError("there is nothing to sample from: the loader gave no images; check the part and limit")
        self.quotas = self.sizes if num_images is None else quotas(self.sizes, num_images, balanced)

    def batches(self) -> Batches:
        """The chosen images. Only these are read if the labels are available without the images."""
        if self._all:
            return self._loader
        if self._places is None or not isinstance(self._loader, DataLoader):
            logger.info("picking %d of %d images while reading all of them", self.quotas.sum(), self.sizes.sum())
            return self
        places = self._places[drawn(self._labels, self.quotas, self._entropy)]
        loader = self._loader
        size = loader.batch_size or max(1, len(places) // max(1, len(loader)))
        return DataLoader(
            loader.dataset,
            batch_sampler=[places[i : i + size].tolist() for i in range(0, len(places), size)],
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            worker_init_fn=loader.worker_init_fn,
        )

    def __len__(self) -> int:
        length = length_of(self._loader)
        if length is None:
            raise TypeError("the loader has no length")
        return length

    def __iter__(self) -> Iterator[Batch]:
        """The chosen images of any loader, picked while it is read.

        An image of a class is taken with probability (still wanted) / (still to come). This gives an exact stratified
        sample for any order of the images.
        """
        random = np.random.default_rng(self._entropy)
        wanted, to_come = self.quotas.copy(), self.sizes.copy()
        for index, batch in enumerate(self._loader):
            labels = self._classes(batch, index)
            take = []
            for row, label in enumerate(labels):
                if label < len(wanted) and random.random() * to_come[label] < wanted[label]:
                    take.append(row)
                    wanted[label] -= 1
                to_come[label : label + 1] -= 1
            if take:
                yield _some_images(batch, torch.tensor(take), len(labels))
            if not wanted.any():
                return

    def _classes(self, batch: Batch, index: int, labelled: bool = False) -> Ints:
        """The class of each image of a batch; 0 for all where there is not one class per image."""
        images, labels = unpack_for(self._task, batch, index, labelled)
        if labels is None or self._task.label_kind != "classes":
            return np.zeros(count_images(images), dtype=np.int64)
        classes: Ints = as_class_indices(labels, index).cpu().numpy()
        if len(classes) and classes.min() < 0:
            raise DataError(f"batch {index} has the label {classes.min()}; number the classes from 0")
        return classes


def quotas(sizes: Ints, num_images: int, balanced: bool = False) -> Ints:
    """Number of images of each class: shares by largest remainder, or equal numbers as far as possible."""
    num_images = min(num_images, int(sizes.sum()))
    if not balanced:
        return shares(sizes, num_images)
    taken = np.zeros_like(sizes)
    while (left := num_images - int(taken.sum())) > 0:
        open_classes = np.flatnonzero(taken < sizes)
        if left < len(open_classes):
            taken[open_classes[:left]] += 1
        else:
            room = (sizes - taken)[open_classes]
            taken[open_classes] += np.minimum(room, left // len(open_classes))
    return taken


def _labels_of(dataset: Any, task: Task) -> Ints | None:
    """The classes of all images of a data set without reading one, 0 without classes; None if it does not say them."""
    if task.label_kind != "classes":
        return np.zeros(len(dataset), dtype=np.int64) if hasattr(dataset, "__len__") else None
    if isinstance(dataset, Subset):
        inner = _labels_of(dataset.dataset, task)
        return None if inner is None else inner[np.asarray(dataset.indices)]
    tensors = getattr(dataset, "tensors", None)  # TensorDataset
    offered = tensors[1] if isinstance(tensors, tuple) and len(tensors) == 2 else None
    for name in ("targets", "labels"):
        offered = getattr(dataset, name, None) if offered is None else offered
    if not isinstance(offered, Tensor | np.ndarray | list | tuple) or not len(offered):
        return None
    labels = np.asarray(offered)
    return labels.astype(np.int64) if labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0 else None


class _Indivisible(Exception):
    """A batch has a tensor that does not hold one row for each image."""


def _some_images(batch: Any, rows: Tensor, count: int) -> Any:
    """The images at `rows` of a batch of `count`; all of it if its labels cannot be divided, such as those of YOLO."""

    def some(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim:
            if len(value) != count:
                raise _Indivisible
            return value[rows.to(value.device)]
        if isinstance(value, Mapping):
            return {key: some(part) for key, part in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, str):
            # A list may have one item for each image, such as its boxes. A batch itself never is such a list, even if
            # there are as many images as parts: (images, labels).
            if value is not batch and len(value) == count and not divisible(value, count):
                return [value[row] for row in rows.tolist()]
            return tuple(some(part) for part in value)
        return value

    try:
        return some(batch)
    except _Indivisible:
        return batch


def divisible(value: Any, count: int) -> bool:
    """Whether all that a part of a batch holds are tensors with one row for each of its images.

    A list with a dict for each image is not: its tensors may have as many rows as there are images by chance.
    """
    if isinstance(value, list | tuple) and len(value) == count and all(isinstance(one, Mapping) for one in value):
        return False
    return all(isinstance(part, Tensor) and part.ndim > 0 and len(part) == count for part in tree_leaves(value))


# Unlabelled images, from a tensor or from batches with or without labels, checked against the traced example.

CHUNK = 64  # images that run through the network at a time

Images = Tensor | Iterable[Any]  # a tensor [N, C, H, W] as the network takes it, or batches; labels are ignored


def chunks(graph: ChannelGraph, images: Images) -> Iterator[Any]:
    """The images in chunks of `CHUNK`, checked and on the model's device; only one chunk is held at a time.

    A graph whose code depends on the batch size gets whole chunks only.
    """
    if not isinstance(images, Iterable):
        raise DataError(
            f"images must be a tensor or batches, got {type(images).__name__}; check the order of the arguments"
        )
    home, wanted = device_of(graph.model), _shapes(graph.example)
    left: Any = None
    done = 0
    for number, batch in enumerate([images] if isinstance(images, Tensor) else images):
        some, _ = unpack_any(batch[:1] if isinstance(batch, list | tuple) else batch, number)
        if (got := _shapes(some)) != wanted:
            raise DataError(
                f"batch {number}: the network was traced with images of {wanted}, got images of {got}. "
                "Resize the images, or trace the network with an example of this size."
            )
        some = move(some, home)
        counts = {len(t) for t in tree_leaves(some) if isinstance(t, Tensor) and t.dim()}
        if len(counts) != 1:
            raise DataError(f"all inputs of a batch must have the same number of images, got {sorted(counts)}")
        left = some if left is None else tree_map(lambda a, b: torch.cat([a, b]), left, some)
        while count_images(left) >= CHUNK:
            yield tree_map(lambda t: t[:CHUNK], left)
            left = tree_map(lambda t: t[CHUNK:], left)
            done += 1
    if left is None:
        raise DataError("there are no images: the loader gave no batch; check the part, split and limit")
    if count_images(left) and not (done and graph.analysis.traced.guards):
        yield left
    elif not done:
        raise DataError("there are no images: every batch is empty")


def _shapes(inputs: Any) -> str:
    """Shapes and types of the inputs of one image."""
    args, kwargs = as_call(inputs)
    leaves = tree_flatten((args, [kwargs[key] for key in sorted(kwargs)]))[0]
    texts = [f"{list(t.shape[1:])} ({str(t.dtype).removeprefix('torch.')})" for t in leaves if isinstance(t, Tensor)]
    return ", ".join(texts) or "no tensor"
