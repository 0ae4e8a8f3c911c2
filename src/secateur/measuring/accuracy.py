"""How often a classifier is right: top-1, top-5 and mean cross-entropy over a loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import Batches, call, check_range, device_of, logits_of, move, unpack
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.processes import usable
from secateur.errors import DataError, RunError

TOP5_CLASSES = 10  # with fewer classes than this, five guesses say next to nothing, and top5 is None
PERFECT = 0.995  # a held-out accuracy from here on, on PERFECT_IMAGES or more, hardly ever is an honest one
PERFECT_IMAGES = 500

Progress = Callable[[int, int | None], None]  # batches done, batches in all (None if the loader has no length)


@dataclass(frozen=True)
class Accuracy:
    """Fractions of 1, not per cent. `loss` is the mean cross-entropy in nats; top5 is None below 10 classes."""

    top1: float
    top5: float | None
    loss: float
    images: int


def evaluate(
    model: nn.Module,
    loader: Batches,
    *,
    device: torch.device | str | None = None,
    topk: Sequence[int] = (1, 5),
    progress: Progress | None = None,
) -> Accuracy:
    """Top-1, top-5 and loss of `model` over all batches of `loader`, in eval mode and without gradients.

    Batches are pairs (images, labels) or dicts. The model runs where it is, or as a copy on `device`. Its mode, the
    generators and everything else are as found afterwards. Each process looks only at the batches it is given.
    Raises DataError for an empty loader and for labels of a wrong type, shape or range.
    """
    if not set(topk) <= {1, 5} or 1 not in topk:
        raise RunError(f"topk should be (1,) or (1, 5), not {tuple(topk)}")
    model = _placed(model, device)
    home, total = device_of(model), _length(loader)
    hits1: list[Tensor] = []
    hits5: list[Tensor] = []
    losses: list[Tensor] = []
    images_seen = 0
    with evaluating(model), generators_kept(), torch.no_grad():
        for index, batch in enumerate(loader):
            images, labels = unpack(batch, index)
            logits = logits_of(call(model, move(images, home)))  # [N, K]
            check_range(labels, logits, index)
            labels = labels.to(home, non_blocking=True)
            hits1.append((logits.argmax(1) == labels).sum())
            if 5 in topk and logits.shape[1] >= TOP5_CLASSES:
                hits5.append((logits.topk(5, dim=1).indices == labels[:, None]).sum())  # [N, 5] -> 0-d
            losses.append(F.cross_entropy(at_least_float32(logits), labels, reduction="sum"))
            images_seen += len(labels)
            if progress is not None:
                progress(index + 1, total)
    if images_seen == 0:
        raise DataError("there is nothing to evaluate on: the loader gave no images; check the part, split and limit")
    # One transfer at the end: a batch never waits for the one before it on an accelerator.
    top5 = _total(hits5) / images_seen if hits5 else None
    return Accuracy(_total(hits1) / images_seen, top5, _total(losses) / images_seen, images_seen)


def too_good(accuracy: Accuracy) -> str | None:
    """Words of warning when a held-out accuracy is suspiciously perfect (99.5% or more on 500 images or more).

    A network that was trained on these images scores like this, and what is decided on such a score is decided by
    chance: ResNet-56 has 100.0% on its training images, and 99.8% still with 8% of its MACs cut.
    """
    if accuracy.top1 < PERFECT or accuracy.images < PERFECT_IMAGES:
        return None
    return (
        f"held-out accuracy is {100 * accuracy.top1:.2f}% on {accuracy.images} images, which is suspiciously perfect: "
        "was the network trained on them? Hold out images that it has not seen (for a network that came trained, "
        "half of the test set: --holdout test:0.5), or judge by the loss"
    )


def at_least_float32(logits: Tensor) -> Tensor:
    """Half-precision logits as float32, so that exponentials and sums do not lose what the model computed."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _placed(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    """The model itself where it already is on `device`, else a copy there: the caller's stays where it was."""
    if device is None:
        return model
    wanted, home = usable(device), device_of(model)
    if home.type == wanted.type and wanted.index in (None, home.index):
        return model
    return copy.deepcopy(model).to(wanted)


def _length(loader: Batches) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:  # an iterable without a length, a DataLoader over an IterableDataset among them
        return None


def _total(values: list[Tensor]) -> float:
    return float(torch.stack(values).cpu().double().sum())
