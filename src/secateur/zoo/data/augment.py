"""The standard augmentation of He et al. 2016, on whole batches of uint8 images at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

PADDED_SHARE = 8  # pad by 1/8 of the height: 4 pixels for 32


def pad_crop_mirror(
    pixels: Tensor, rng: np.random.Generator, *, mirror: bool, whole: int | None = None, share: slice = slice(None)
) -> Tensor:
    """Pad each image with black, crop it to its old size at a random place, and mirror it with probability 1/2.

    All random numbers come from `rng` in a fixed order, so the same generator gives the same images.
    whole, share: the number of images in a batch that several processes share, and which of them `pixels` are.
    """
    count, _, height, width = pixels.shape
    whole = count if whole is None else whole
    pad = max(1, height // PADDED_SHARE)
    tops, lefts = (torch.from_numpy(rng.integers(0, 2 * pad + 1, whole)[share]) for _ in range(2))  # [N] each
    padded = F.pad(pixels, (pad, pad, pad, pad))  # [N, C, H + 2 pad, W + 2 pad]
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view [N, C, 2 pad + 1, 2 pad + 1, H, W]
    cropped = windows[torch.arange(count), :, tops, lefts]  # [N, C, H, W]
    if mirror:
        mirrored = torch.from_numpy(rng.random(whole)[share] < 0.5)  # [N]
        cropped[mirrored] = cropped[mirrored].flip(3)
    return cropped
