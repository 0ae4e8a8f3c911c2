"""Mixup (Zhang et al. 2018): a batch is mixed with itself in another order, images and losses alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta

from secateur.errors import RunError

Targets = list[tuple[float, Any]]  # share of the loss, labels


def mixed(images: Any, labels: Any, strength: float) -> tuple[Any, Targets]:
    """Images s x + (1 - s) x[order] and the labels of both, with their shares s and 1 - s of the loss.

    s is drawn from Beta(strength, strength), one for the batch; the larger of s and 1 - s goes to the labels as they
    are. A teacher sees the mixed images. A strength of 0 mixes nothing.
    """
    if not strength:
        return images, [(1.0, labels)]
    if not (isinstance(images, Tensor) and images.is_floating_point() and isinstance(labels, Tensor)):
        raise RunError("mixup needs a tensor of images and a tensor of labels in each batch; leave it out")
    drawn = float(Beta(strength, strength).sample())
    share = max(drawn, 1 - drawn)
    order = torch.randperm(len(images)).to(images.device)
    return torch.lerp(images[order], images, share), [(share, labels), (1 - share, labels[order])]
