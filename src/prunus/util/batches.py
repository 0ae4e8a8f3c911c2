"""Batches of any loader: (images, labels) from tuples and dicts, checked, moved and passed to a model."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.errors import DataError, ModelError

Batch = Sequence[Any] | Mapping[str, Any]
Ints = npt.NDArray[np.int64]
Batches = Iterable[Batch]  # a DataLoader, prunus.zoo's Loader, a list of batches

IMAGE_KEYS = ("image", "images", "pixel_values", "input", "inputs", "x")
OUTPUT_KEYS = ("logits", "out")
LABEL_KEYS = ("label", "labels", "target", "targets", "y")


def check_batches(loader: Any, what: str, again: bool = False) -> None:
    """DataError unless `loader` can be read batch by batch; and `again` from the start, if that is asked."""
    if again and isinstance(loader, Iterator):
        raise DataError(
            f"{what} is a {type(loader).__name__}, which can be read only once, and a run reads its images several "
            "times: pass a list of batches or a DataLoader"
        )
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise DataError(
            f"{what} must be batches of (images, labels), such as a DataLoader or a list; got {type(loader).__name__}"
        )


def unpack_any(batch: Any, index: int) -> tuple[Any, Any]:
    """(images, labels) of a batch with labels of any kind; labels are None if the batch is images alone.

    Images are the input of the model: a tensor [N, C, H, W], or a tuple or dict of tensors for several inputs.
    """
    labels = None
    if isinstance(batch, Mapping):
        key = next((key for key in IMAGE_KEYS if key in batch), None)
        if key is None:
            wanted = " or ".join(IMAGE_KEYS)
            raise DataError(f"batch {index} is a dict with the keys {sorted(batch)}, but none of them is {wanted}")
        images = batch[key]
        labels = next((batch[key] for key in LABEL_KEYS if key in batch), None)
    elif isinstance(batch, Tensor):
        images = batch
    elif isinstance(batch, list | tuple) and 1 <= len(batch) <= 2:
        images, labels = (*batch, None)[:2]
    else:
        size = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
        raise DataError(
            f"batch {index} must be images, a pair (images, labels) or a dict with both, but is a "
            f"{type(batch).__name__}{size}; for other batches, give a user-provided task with inputs="
        )
    for tensor in tree_leaves(images):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        if tensor.is_meta:
            raise DataError(f"batch {index}: its images are on the meta device, so they have no values")
        # One sum is quicker than a look at each number, and it is finite only if all of them are.
        wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
        if not tensor.sum(dtype=wide).isfinite():
            count = int((~tensor.isfinite().flatten(1).all(1)).sum()) if tensor.ndim > 1 else 1
            raise DataError(
                f"batch {index}: {count} of {len(tensor)} images have values that are NaN or infinite; check how they "
                "are read and normalised (a standard deviation of 0?)"
            )
    return images, labels


def as_class_indices(labels: Any, index: int) -> Tensor:
    """Labels as int64 [N]; DataError if they are something else."""
    if labels is None:
        raise DataError(f"batch {index} has no labels, and this needs one class per image")
    if not isinstance(labels, Tensor):
        raise DataError(f"batch {index}: labels must be a tensor of class indices [N], not {type(labels).__name__}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(
            f"batch {index}: labels must be integers (class indices), not {labels.dtype}; "
            "convert one-hot or soft labels with argmax(1)"
        )
    if labels.ndim != 1:
        raise DataError(
            f"batch {index}: labels must have the shape [N], one class index per image, not {list(labels.shape)}"
        )
    return labels.long()


def length_of(loader: Any) -> int | None:
    """The number of batches; None of an iterable without a length, such as a DataLoader over an IterableDataset."""
    try:
        return len(loader)
    except TypeError:
        return None


def count_images(images: Any) -> int:
    """The number of images in the inputs of a network: the length of the first tensor."""
    for tensor in tree_leaves(images):
        if isinstance(tensor, Tensor) and tensor.ndim:
            return len(tensor)
    raise DataError(f"the inputs of the network must hold a tensor [N, ...], got {type(images).__name__}")


def to_device(values: Any, device: torch.device) -> Any:
    """Inputs or labels of any structure with their tensors on `device`."""
    return tree_map(lambda x: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x, values)


def check_range(labels: Tensor, logits: Tensor, index: int) -> None:
    """Raise DataError unless logits are [N, K] for the N labels and every label lies in 0 .. K-1."""
    if logits.ndim != 2 or len(logits) != len(labels):
        raise DataError(
            f"batch {index}: for {len(labels)} labels the model must return logits [{len(labels)}, classes], "
            f"but it returns {list(logits.shape)}"
        )
    classes = logits.shape[1]
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataError(
            f"batch {index} has labels from {int(labels.min())} to {int(labels.max())}, but the model has "
            f"{classes} classes, 0 to {classes - 1}; number the classes from 0, or build the model with more"
        )


def logits_of(output: Any) -> Tensor:
    """The class scores in a model's output, see `main_output`."""
    return main_output(output, "a tensor of class scores [N, classes]")


def main_output(output: Any, wanted: str = "a tensor") -> Tensor:
    """The tensor of an output that counts: itself; `logits` or `out` of a dict or dataclass, else its first value; the
    first of a tuple (the others are auxiliary heads)."""
    if dataclasses.is_dataclass(output) and not isinstance(output, Mapping | type):
        output = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    if isinstance(output, Mapping):
        named = next((name for name in OUTPUT_KEYS if output.get(name) is not None), None)
        output = next(iter(output.values()), None) if named is None else output[named]
    elif isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ModelError(f"the model must return {wanted}, not {type(output).__name__}")
    return output


def call(model: nn.Module, images: Any) -> Any:
    """model(images), with a tuple of inputs spread as arguments and a dict as keywords."""
    if isinstance(images, Mapping):
        return model(**images)
    if isinstance(images, list | tuple):
        return model(*images)
    return model(images)


def move(images: Any, device: torch.device, channels_last: bool = False) -> Any:
    """Images on `device`, 4-dimensional ones in channels-last order if asked. The caller's tensors are not changed."""

    def moved(image: Any) -> Tensor:
        if not isinstance(image, Tensor):
            raise DataError(f"images must be tensors [N, C, H, W], not {type(image).__name__}")
        order = torch.channels_last if channels_last and image.ndim == 4 else torch.preserve_format
        return image.to(device, non_blocking=True, memory_format=order)

    return tree_map(moved, images)


def order_channels_last(model: nn.Module) -> nn.Module:
    """Put the model's 4-dimensional weights and buffers into channels-last order, in place, and return it.

    `model.to(memory_format=torch.channels_last)` does the same, but it refuses 5-dimensional weights (Conv3d).
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return model


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter or buffer; the CPU if it has neither."""
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def batch_digest(images: Any) -> bytes:
    """128 bits that tell batches apart: BLAKE2 of types, shapes and bytes of all tensors."""
    total = hashlib.blake2b(digest_size=16)
    for leaf in tree_leaves(images):
        if isinstance(leaf, Tensor):
            plain = leaf.detach().cpu().contiguous()
            total.update(f"{plain.dtype} {list(plain.shape)};".encode())
            total.update(plain.view(-1).view(torch.uint8).numpy().data)
        else:
            total.update(f"{leaf!r};".encode())
    return total.digest()


class KeptAnswers:
    """Answers to batches, kept under a digest of the batches' bytes as long as they fit into `room` bytes.

    So a kept answer is that to exactly these images, in this order: a run that is resumed computes the same bits again.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: dict[bytes, Any] = {}

    def of(self, images: Any, answer: Callable[[], Any]) -> Any:
        """The answer to a batch, which `answer` computes."""
        key = batch_digest(images)
        if key in self._kept:
            return self._kept[key]
        made = answer()
        size = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(made) if isinstance(leaf, Tensor))
        if size <= self._room:
            self._kept[key], self._room = made, self._room - size
        return made


# -- stratified samples


def shares(sizes: Ints, count: int) -> Ints:
    """Number of images of each class in a sample of `count` images: shares by largest remainder.

    Class k gets floor(n_k count / N) images; the remaining ones go to the classes with the largest remainders.
    """
    whole, remainder = np.divmod(sizes * count, max(1, int(sizes.sum())))
    whole[np.argsort(-remainder, kind="stable")[: count - int(whole.sum())]] += 1
    return whole


def drawn(labels: Ints, wanted: Ints, seed: int | Sequence[int] | None) -> Ints:
    """The sorted positions of so many images of each class, drawn at random."""
    sizes = np.bincount(labels, minlength=len(wanted))
    mixed = np.random.default_rng(seed).permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]  # classes one after another, each in random order
    rank = np.arange(len(labels)) - (np.cumsum(sizes) - sizes)[labels[by_class]]  # within the class
    return np.sort(by_class[rank < wanted[labels[by_class]]])
