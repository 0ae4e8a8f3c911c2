"""One pass over a loader: batches are unpacked and checked, the network runs in eval mode, all state is restored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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
    IMAGE_KEYS,
    Batch,
    Batches,
    as_class_indices,
    call,
    check_batches,
    count_images,
    device_of,
    labels_to,
    move,
)
from prunus.util.processes import processes
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

After = Callable[[int, Any, Any], None]  # batch number, labels on the CPU, outputs that count: logits [N, K]


def walk(
    graph: ChannelGraph,
    loader: Batches,
    after: After,
    *,
    before: Callable[[Any], None] | None = None,
    gradients: bool = False,
    labelled: bool = True,
    progress: Progress | None = None,
    task: Task | None = None,
) -> int:
    """Run the graph's model on every batch, and call `after` when a batch is done and its labels are checked.

    before: called with the labels of each batch, before it runs.
    labelled: False: batches may be images alone, whose labels are None, and outputs are not looked at.
    With `gradients` the images require gradients, so that every activation has one even if all parameters are frozen.
    Returns the number of images; an empty loader is an error.
    """
    check_batches(loader, "loader")
    model, total, images_seen = graph.model, length_of(loader), 0
    home, chosen = device_of(model), task_of(task)
    with evaluating(model), generators_kept(), torch.inference_mode(False), torch.set_grad_enabled(gradients):
        for index, batch in enumerate(loader):
            images, labels = unpack_for(chosen, batch, index, labelled)
            count = count_images(images)
            if not count:
                continue
            images = move(images, home)
            if before is not None:
                before(labels)
            if gradients:
                images = _leaves(images)
            outputs = call(model, images)
            if labels is not None and (labelled or chosen.label_kind == "classes"):
                outputs = outputs_for(chosen, outputs, labels, index)
            after(index, labels_to(labels, torch.device("cpu")), outputs)
            images_seen += count
            if progress is not None:
                progress(index + 1, total)
    if images_seen == 0:
        raise DataError("there is nothing to score on: the loader gave no images; check the part, split and limit")
    return images_seen


def length_of(loader: Iterable[object]) -> int | None:
    """Number of batches; None if the loader has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def _leaves(images: object) -> object:
    """Copies that require gradients; the caller's tensors are not changed."""
    if isinstance(images, dict):
        return {key: _leaves(value) for key, value in images.items()}
    if isinstance(images, tuple):
        return tuple(_leaves(value) for value in images)
    if isinstance(images, Tensor) and images.is_floating_point():
        return images.detach().clone().requires_grad_()
    return images


# A stratified sample of a loader's images: every class keeps its share, and each call draws a new sample.

log = logging.getLogger(__name__)
Ints = npt.NDArray[np.int64]


def sampled(loader: Batches, num_images: int | None, seed: int | None = None, task: Task | None = None) -> Batches:
    """Batches of a stratified sample of `num_images` images; the loader itself if `num_images` is None.

    Without one class per image (another task than classification, or no labels) all images are one stratum.

    With several processes, each draws its part of the sample from its own share of the images.
    """
    return loader if num_images is None else Sample(loader, num_images // processes(), seed, task=task).batches()


class Sample:
    """A sample of `num_images` images of a loader; all if None. Of `sizes` images per class, `quotas` are chosen.

    balanced: choose the same number of every class instead of each class's share; small classes give all they have.
    seed: None draws a new sample; within one Sample every reading gives the same images.
    labelled: a batch without labels is an error; otherwise all images are one class where there are none.
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
        self._places, self._labels = _places_and_labels(loader, self._task)
        self.sizes = _count(loader, self._task, labelled) if self._labels is None else np.bincount(self._labels)
        if self.sizes.sum() == 0:
            raise DataError("there is nothing to sample from: the loader gave no images; check the part and limit")
        self.quotas = self.sizes if num_images is None else quotas(self.sizes, num_images, balanced)

    def batches(self) -> Batches:
        """The chosen images. Only these are read if the labels are available without the images."""
        if self._all:
            return self._loader
        random = np.random.default_rng(self._entropy)
        if self._labels is not None and self._places is not None and isinstance(self._loader, DataLoader):
            return _only(self._loader, self._places[_draw(self._labels, self.quotas, random)])
        log.info("picking %d of %d images while reading all of them", self.quotas.sum(), self.sizes.sum())
        return Picked(self._loader, self.sizes, self.quotas, random, self._task)


def quotas(sizes: Ints, num_images: int, balanced: bool = False) -> Ints:
    """Number of images of each class: shares by largest remainder, or equal numbers as far as possible."""
    num_images = min(num_images, int(sizes.sum()))
    if not balanced:
        whole, remainder = np.divmod(sizes * num_images, max(1, int(sizes.sum())))
        whole[np.argsort(-remainder, kind="stable")[: num_images - int(whole.sum())]] += 1
        return whole
    taken = np.zeros_like(sizes)
    while (left := num_images - int(taken.sum())) > 0:
        open_classes = np.flatnonzero(taken < sizes)
        if left < len(open_classes):
            taken[open_classes[:left]] += 1
        else:
            room = (sizes - taken)[open_classes]
            taken[open_classes] += np.minimum(room, left // len(open_classes))
    return taken


class Picked:
    """A sample of any loader, picked while it is read.

    An image of a class is taken with probability (still wanted) / (still to come). This gives an exact stratified
    sample for any order of the images.
    """

    def __init__(
        self, loader: Batches, sizes: Ints, wanted: Ints, random: np.random.Generator, task: Task | None = None
    ) -> None:
        self._task = task_of(task)
        self._loader, self._sizes, self._wanted, self._random = loader, sizes, wanted, random

    def __len__(self) -> int:
        length = length_of(self._loader)
        if length is None:
            raise TypeError("the loader has no length")
        return length

    def __iter__(self) -> Iterator[Batch]:
        wanted, to_come = self._wanted.copy(), self._sizes.copy()
        for index, batch in enumerate(self._loader):
            labels = _plain_labels(batch, index, self._task)
            take = []
            for row, label in enumerate(labels):
                if label < len(wanted) and self._random.random() * to_come[label] < wanted[label]:
                    take.append(row)
                    wanted[label] -= 1
                to_come[label : label + 1] -= 1
            if take:
                yield _some_images(batch, torch.tensor(take), len(labels))
            if not wanted.any():
                return


def _draw(labels: Ints, wanted: Ints, random: np.random.Generator) -> Ints:
    """Sorted positions in `labels` of `wanted` images of each class."""
    mixed = random.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]  # classes one after another, each in random order
    sizes = np.bincount(labels)
    rank = np.arange(len(labels)) - (np.cumsum(sizes) - sizes)[labels[by_class]]
    return np.sort(by_class[rank < wanted[labels[by_class]]])


def _count(loader: Batches, task: Task, labelled: bool) -> Ints:
    """Number of images of each class, by reading the loader once."""
    sizes = np.zeros(0, dtype=np.int64)
    for index, batch in enumerate(loader):
        found = np.bincount(_plain_labels(batch, index, task, labelled), minlength=len(sizes))
        found[: len(sizes)] += sizes
        sizes = found
    return sizes


def _places_and_labels(loader: Batches, task: Task) -> tuple[Ints | None, Ints | None]:
    """The places of its data set that a DataLoader reads, and their labels, without reading an image; else None."""
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        return None, None
    labels = _labels_of(loader.dataset) if task.label_kind == "classes" else _no_labels(loader.dataset)
    if labels is None:
        return None, None
    with generators_kept():
        places = np.array([i for batch in loader.batch_sampler for i in batch], dtype=np.int64)
    return places, labels[places]


def _no_labels(dataset: Any) -> Ints | None:
    """The same label for all images of a data set; None if it has no length."""
    return np.zeros(len(dataset), dtype=np.int64) if hasattr(dataset, "__len__") else None


def _labels_of(dataset: Any) -> Ints | None:
    """All labels of a data set without reading an image; None if it does not offer them."""
    if isinstance(dataset, Subset):
        inner = _labels_of(dataset.dataset)
        return None if inner is None else inner[np.asarray(dataset.indices)]
    tensors = getattr(dataset, "tensors", None)  # TensorDataset
    found = tensors[1] if isinstance(tensors, tuple) and len(tensors) == 2 else None
    for name in ("targets", "labels"):
        found = getattr(dataset, name, None) if found is None else found
    if not isinstance(found, Tensor | np.ndarray | list | tuple) or not len(found):
        return None
    labels = np.asarray(found)
    return labels.astype(np.int64) if labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0 else None


def _only(loader: DataLoader[Any], places: Ints) -> DataLoader[Any]:
    """A loader like the given one that reads only these places, in order."""
    size = loader.batch_size or max(1, len(places) // max(1, len(loader)))
    return DataLoader(
        loader.dataset,
        batch_sampler=[places[i : i + size].tolist() for i in range(0, len(places), size)],
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
    )


def _plain_labels(batch: Batch, index: int, task: Task, labelled: bool = False) -> Ints:
    images, found = unpack_for(task, batch, index, labelled)
    if found is None or task.label_kind != "classes":
        return np.zeros(count_images(images), dtype=np.int64)
    labels: Ints = as_class_indices(found, index).cpu().numpy()
    if len(labels) and labels.min() < 0:
        raise DataError(f"batch {index} has the label {labels.min()}; number the classes from 0")
    return labels


class _Indivisible(Exception):
    """A batch has a tensor that does not hold one row for each image."""


def _some_images(batch: Any, rows: Tensor, count: int) -> Any:
    """The images at `rows` of a batch of `count`; all of it if its labels cannot be divided, such as those of YOLO."""
    try:
        if isinstance(batch, list | tuple):  # (images, labels), even if there are as many images as parts
            return tuple(_rows(part, rows, count) for part in batch)
        return _rows(batch, rows, count)
    except _Indivisible:
        return batch


def _rows(value: Any, rows: Tensor, count: int) -> Any:
    """Some rows of every tensor, and the items of a list that has one for each image, such as its boxes."""
    if isinstance(value, Tensor) and value.ndim:
        if len(value) != count:
            raise _Indivisible
        return value[rows.to(value.device)]
    if isinstance(value, Mapping):
        return {key: _rows(part, rows, count) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) == count and not divisible(value, count):
            return [value[row] for row in rows.tolist()]
        return tuple(_rows(part, rows, count) for part in value)
    return value


def divisible(value: Any, count: int) -> bool:
    """Whether all that a part of a batch holds are tensors with one row for each of its images."""
    return all(isinstance(part, Tensor) and part.ndim > 0 and len(part) == count for part in tree_leaves(value))


# Unlabelled images from a tensor or from batches with or without labels, checked against the traced example.

CHUNK = 64  # images that run through the network at a time

Images = Tensor | Iterable[Any]  # a tensor [N, C, H, W] as the network takes it, or batches; labels are ignored


def chunks(graph: ChannelGraph, images: Images) -> Iterator[Any]:
    """The images in chunks of `CHUNK`, checked and on the model's device; only one chunk is held at a time.

    A graph whose code depends on the batch size gets whole chunks only.
    """
    left: Any = None
    done = 0
    for batch in _checked(graph, images):
        left = batch if left is None else tree_map(lambda a, b: torch.cat([a, b]), left, batch)
        while count_of(left) >= CHUNK:
            yield tree_map(lambda t: t[:CHUNK], left)
            left = tree_map(lambda t: t[CHUNK:], left)
            done += 1
    if count_of(left) and not (done and graph.analysis.traced.guards):
        yield left
    elif not done:
        raise DataError("there are no images: every batch is empty")


def count_of(images: Any) -> int:
    """Number of images in a tensor, or in a tuple or dict of tensors that belong together."""
    counts = {len(t) for t in tree_flatten(images)[0] if isinstance(t, Tensor) and t.dim()}
    if len(counts) != 1:
        raise DataError(f"all inputs of a batch must have the same number of images, got {sorted(counts)}")
    return int(counts.pop())


def _checked(graph: ChannelGraph, images: Images) -> Iterator[Any]:
    home = device_of(graph.model)
    number = -1
    if not isinstance(images, Iterable):
        raise DataError(
            f"images must be a tensor or batches, got {type(images).__name__}; check the order of the arguments"
        )
    for number, batch in enumerate([images] if isinstance(images, Tensor) else images):
        some = _images_of(batch, number)
        _check_shapes(graph, some, number)
        moved = move(some, home)
        if not all(bool(torch.isfinite(t).all()) for t in tree_flatten(moved)[0] if isinstance(t, Tensor)):
            raise DataError(f"batch {number}: the images have NaN or infinite values")
        yield moved
    if number < 0:
        raise DataError("there are no images: the loader gave no batch; check the part, split and limit")


def _images_of(batch: Any, number: int) -> Any:
    """The images of a batch: the batch itself, the first element of a tuple or list, or an entry of a dict."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        for key in IMAGE_KEYS:
            if key in batch:
                return batch[key]
        raise DataError(
            f"batch {number} is a dict with the keys {sorted(map(str, batch))}; expected one of "
            f"{', '.join(IMAGE_KEYS)} for the images"
        )
    if isinstance(batch, tuple | list) and batch:
        return batch[0]
    raise DataError(
        f"batch {number} must be images [N, C, H, W], a tuple that starts with images or a dict that has them, "
        f"got {type(batch).__name__}"
    )


def _check_shapes(graph: ChannelGraph, batch: Any, number: int) -> None:
    """The inputs must have the example's sizes and types; the number of images may differ."""
    wanted, got = _shapes(graph.example), _shapes(batch)
    if wanted != got:
        raise DataError(
            f"batch {number}: the network was traced with images of {_words(wanted)}, got images of {_words(got)}. "
            "Resize the images, or trace the network with an example of this size."
        )


def _shapes(inputs: Any) -> list[tuple[list[int], torch.dtype]]:
    args, kwargs = as_call(inputs)
    leaves = tree_flatten((args, [kwargs[key] for key in sorted(kwargs)]))[0]
    return [(list(t.shape[1:]), t.dtype) for t in leaves if isinstance(t, Tensor)]


def _words(shapes: list[tuple[list[int], torch.dtype]]) -> str:
    return ", ".join(f"{shape} ({str(dtype).removeprefix('torch.')})" for shape, dtype in shapes) or "no tensor"
