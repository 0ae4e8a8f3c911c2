"""Metrics of the moments of activations: how well a channel separates classes, and how much it carries.

gsd, fdr, abs_snr and ttest compare each class with the rest: mu and v are mean and variance of a class, nu and w those
of all other classes, and the score is the unweighted mean over classes (Eqn. 8 of the paper). A ridge r keeps them
finite for a channel that is dead for a class. It is ours: the paper has none.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from prunus.scoring.evidence import Channels
from prunus.scoring.metrics import metric

SMALLEST = 1e-200  # a denominator of 0, of a channel that is dead for a class and a ridge of 0, counts as this


class Partition(NamedTuple):
    """A channel's activations split into a class and all others (section 7.2 of the paper), for every class at once."""

    gap: Tensor  # [K, C] mean of the class - mean of the rest
    variance: Tensor  # [K, C] population variance of the class
    rest_variance: Tensor  # [K, C]
    num_images: Tensor  # [K, 1]
    num_rest_images: Tensor  # [K, 1]


def partition(channels: Channels) -> Partition:
    """(F^c, F^-c) of every class c. The mean of a measure over its rows is Eqn. 8 of the paper."""
    moments, rest = channels.moments, channels.moments.rest
    images, rest_images = moments.num_images[:, None], rest.num_images[:, None]
    return Partition(moments.mean - rest.mean, moments.variance, rest.variance, images, rest_images)


def over(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, finite for denominators of 0: 0 / 0 is 0, and anything else is very large."""
    return numerator / denominator.clamp(min=SMALLEST)


@metric("Generalised symmetric divergence, the paper's metric", needs="moments", cites=("liu2020rethinking",))
def gsd(channels: Channels, ridge: float = 0.05) -> Tensor:
    """G-SD = mean over classes of SD(F^c, F^-c); Eqns. 1, 7 and 8 of the paper.

    SD = 1/2 [v / (w + r) + w / (v + r)] + 1/2 (mu - nu)^2 / (v + w + r) - 1. Without a ridge this divides by zero if a
    channel is dead for a class; 0.05 is the value in the first author's later public code. "gsd:ridge=0" leaves it out.
    """
    gap, v, w, _, _ = partition(channels)
    ratio = over(v, w + ridge) + over(w, v + ridge)
    return (0.5 * ratio + 0.5 * over(gap.square(), v + w + ridge) - 1).mean(0)


@metric("Generalised Fisher discriminant ratio", needs="moments", cites=("liu2020rethinking", "pavlidis2001gene"))
def fdr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-FDR = mean over classes of (mu - nu)^2 / (v + w + r); Eqn. 5."""
    gap, v, w, _, _ = partition(channels)
    return over(gap.square(), v + w + ridge).mean(0)


@metric(
    "Generalised absolute signal-to-noise ratio", needs="moments", cites=("liu2020rethinking", "golub1999molecular")
)
def abs_snr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-AbsSNR = mean over classes of |mu - nu| / (sqrt(v) + sqrt(w) + r); Eqn. 4."""
    gap, v, w, _, _ = partition(channels)
    return over(gap.abs(), v.sqrt() + w.sqrt() + ridge).mean(0)


@metric(
    "Generalised Student's t-test (Welch's form)", needs="moments", cites=("liu2020rethinking", "lehmann2006testing")
)
def ttest(channels: Channels, ridge: float = 1e-4, noise_ridge: float | None = None) -> Tensor:
    """G-Ttest = mean over classes of |mu - nu| / sqrt((v + r) / |P| + (w + r) / |Q|); Eqn. 6.

    |P| and |Q| count images, not activations. The ridge is added to the variances, so that it means the same for any
    number of images: added to the noise itself, 1e-4 is 20 times the noise of 4,500 images of a class. The first
    author's later code does that: with `noise_ridge` s, the denominator is sqrt(v / |P| + w / |Q| + s) instead.
    """
    gap, v, w, images, rest_images = partition(channels)
    if noise_ridge is None:
        noise = (v + ridge) / images + (w + ridge) / rest_images
    else:
        noise = v / images + w / rest_images + noise_ridge
    return over(gap.abs(), noise.sqrt()).mean(0)


@metric("(G-SD + 1) x norm of the readers' weights", needs="moments", cites=("liu2020rethinking", "prunus"))
def gsd_reader(channels: Channels, ridge: float = 0.05) -> Tensor:
    """(G-SD + 1) x norm of the readers' weights for the channel.

    G-SD measures how well a channel separates the classes, the norm how strongly the next layers use it. G-SD is at
    least -1 (a dead channel, with a ridge), so the first factor is never negative.
    """
    return (gsd(channels, ridge) + 1) * channels.reader_norms.sqrt()


@metric("Variance of the activations; needs no labels", needs="moments", needs_classes=False, cites=("prunus",))
def act_variance(channels: Channels) -> Tensor:
    """Population variance of a channel's activations over all images and positions."""
    count, _, m2 = channels.moments.total()
    return m2 / count


@metric(
    "Mean square of the activations x squared norm of the readers' weights; needs no labels",
    needs="moments",
    needs_classes=False,
    cites=("prunus",),
)
def reader_energy(channels: Channels) -> Tensor:
    """Mean square of the activations x squared norm of the readers' weights for the channel.

    The expected square of the channel's contribution to its readers' outputs, if its pixels were independent.
    """
    count, mean, m2 = channels.moments.total()
    return (m2 / count + mean.square()) * channels.reader_norms
