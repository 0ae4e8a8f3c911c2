"""Parts of a data set, seeded and stratified, so that no decision uses the images of the final report."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from secateur.errors import DataError

Part = Literal["train", "holdout", "test"]
IntArray = npt.NDArray[np.int64]


def stratified(labels: IntArray, count: int, seed: int) -> IntArray:
    """The sorted positions of `count` images, drawn at random with the same share of each class.

    Class k gets floor(n_k * count / N) images; the remaining ones go to the classes with the largest remainders.
    """
    total = len(labels)
    if not 0 <= count <= total:
        raise DataError(f"cannot take {count} of {total} images")
    sizes = np.bincount(labels) if total else np.zeros(0, dtype=np.int64)  # [K]
    quotas, remainders = np.divmod(sizes * count, max(total, 1))
    left = count - int(quotas.sum())
    quotas[np.argsort(-remainders, kind="stable")[:left]] += 1
    mixed = np.random.default_rng(seed).permutation(total)  # [N]
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]  # [N] sorted by class, in random order within each
    starts = np.cumsum(sizes) - sizes  # [K]
    rank_in_class = np.arange(total) - starts[labels[by_class]]
    return np.sort(by_class[rank_in_class < quotas[labels[by_class]]])


def divide(labels: IntArray, share: float, seed: int) -> tuple[IntArray, IntArray]:
    """Sorted positions (taken, rest): a stratified `share` of the images, and the others."""
    taken = stratified(labels, round(len(labels) * share), seed)
    return taken, np.setdiff1d(np.arange(len(labels)), taken)
