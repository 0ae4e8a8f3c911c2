"""Each class against the rest, and the unweighted mean over classes: shared by gsd, fdr, abs_snr and ttest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from secateur.scoring.moments import ClassMoments

SMALLEST = 1e-200  # a denominator of 0, of a channel that is dead for a class and a ridge of 0, counts as this


@dataclass(frozen=True, eq=False)
class Partition:
    """A channel's activations split into a class and all others (section 7.2 of the paper), for every class at once."""

    gap: Tensor  # [K, C] mean of the class - mean of the rest
    variance: Tensor  # [K, C] population variance of the class
    rest_variance: Tensor  # [K, C]
    num_images: Tensor  # [K, 1]
    num_rest_images: Tensor  # [K, 1]


def over(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, finite for denominators of 0: 0 / 0 is 0, and anything else is very large."""
    return numerator / denominator.clamp(min=SMALLEST)


def one_versus_rest(moments: ClassMoments, measure: Callable[[Partition], Tensor]) -> Tensor:
    """(1 / C) sum over classes c of measure(F^c, F^-c): Eqn. 8 of the paper. -> [C]"""
    rest = moments.rest
    partition = Partition(
        moments.mean - rest.mean,
        moments.variance,
        rest.variance,
        moments.num_images[:, None],
        rest.num_images[:, None],
    )
    return measure(partition).mean(0)
