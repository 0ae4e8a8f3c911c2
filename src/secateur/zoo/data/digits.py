"""The 8x8 digits of scikit-learn: 1,797 real images that need no download."""

from __future__ import annotations

import numpy as np
import torch

from secateur.zoo.data.images import ImageSet, MemoryImages
from secateur.zoo.data.splits import divide

CLASSES = tuple(str(digit) for digit in range(10))
TEST_SHARE = 0.2
TEST_SEED = 0  # fixed: the test images do not change with the seed of a run


def read() -> ImageSet:
    """All digits; a fixed, stratified fifth of them is the test set."""
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = np.rint(found.images * (255 / 16)).astype(np.uint8)  # [N, 8, 8]; values in the file are 0..16
    labels = found.target.astype(np.int64)
    images = MemoryImages.whole(torch.from_numpy(grey).unsqueeze(1), labels)
    test, train = divide(labels, TEST_SHARE, TEST_SEED)
    return ImageSet(
        name="digits",
        classes=CLASSES,
        train=images.take(train),
        test=images.take(test),
        shape=(1, 8, 8),
        mean=(0.3053,),
        std=(0.3761,),
        mirror=False,
    )
