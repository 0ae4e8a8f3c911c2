"""The evidence that metrics take: statistics and weights of a unit's channels, never the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from secateur.scoring.moments import ClassMoments


@dataclass(frozen=True, eq=False)
class Channels:
    """n channels of a unit as they enter the layers that share one tensor."""

    unit: str
    moments: ClassMoments  # [K, n]
    reader_norms: Tensor  # [n] squared norm of the weights of those layers for the channel


@dataclass(frozen=True, eq=False)
class Scatter:
    """Streamed sums over the maps of n channels with d pixels. Its size does not depend on the number of images.

    The same map is subtracted from all maps of a channel first, for accuracy.
    """

    counts: Tensor  # [K] images of each class
    sums: Tensor  # [K, n, d]
    products: Tensor  # [n, d, d] sum over images of f f^T


@dataclass(frozen=True, eq=False)
class Maps:
    """Feature maps of n channels for a sample of images: whole, or as a scatter. One of the two is None."""

    unit: str
    labels: Tensor  # [N] numbered 0 .. K - 1 without gaps
    maps: Tensor | None  # [N, n, d]
    scatter: Scatter | None
    memory: int  # bytes for matrices, in addition to the maps
    height: int = 1  # rows of a map: d = height x width


@dataclass(frozen=True, eq=False)
class Filters:
    """The filters of a unit's channels: of its writers, or for a stream the slices of its readers."""

    unit: str
    weights: Tensor  # [n, everything]
    scales: Tensor | None  # [n] |scale| of the channel's batch norm; None if some channel has none


@dataclass(frozen=True, eq=False)
class Gradients:
    """First-order effects of a unit's channels on the loss."""

    unit: str
    weights: Tensor  # [n, everything]
    weight_gradients: Tensor  # [n, everything] of the mean loss
    effect_squares: Tensor  # [n] sum over images of (sum over positions of activation x gradient)^2
    num_images: int


@dataclass(frozen=True, eq=False)
class Bare:
    """The name and width of a unit, and nothing else."""

    unit: str
    width: int


@dataclass(frozen=True, eq=False)
class ReaderGroup:
    """One group of a layer that reads a unit's channels; layers that are not grouped convolutions have one group."""

    channels: Tensor  # [a] channels of the unit that it reads
    columns: Tensor  # [a, t] their positions among the group's inputs, one per kernel tap and copy
    weight: Tensor  # [o, n]
    covariance: Tensor  # [n, n] of its inputs; [n] only the variances if it is too wide
    rows: int  # that the covariance is made from
    stakes: Tensor | None  # [m, o] R: errors e of its outputs change the network's by |R e|^2 (see `output_stakes`)


@dataclass(frozen=True, eq=False)
class ReaderInputs:
    """Weights of the layers that read a unit, and the covariance of their inputs.

    change: from new weights [o, n] of each group to the mean square change of the network's outputs on images that the
        covariances are not made from, relative to the outputs' variances; None if there are no such images.
    """

    unit: str
    width: int
    groups: tuple[ReaderGroup, ...]
    change: Callable[[Sequence[Tensor]], float] | None


@dataclass(frozen=True, eq=False)
class Contributions:
    """What each channel adds to the outputs of the layers that read it.

    Without its bias, a reader's output is the sum of the contributions of its input channels.
    """

    unit: str
    products: Tensor  # [n, n] sum over outputs of the mean product of the contributions of two channels
    norms: Tensor  # [n] norm of the readers' weights for the channel


@dataclass(frozen=True, eq=False)
class Importance:
    """Importance of the final responses, propagated back to a unit's channels."""

    unit: str
    values: Tensor  # [n]


@dataclass(frozen=True, eq=False)
class ReaderGradients:
    """Gradients of a discrimination-aware loss with respect to the readers' weights for each channel of a unit."""

    unit: str
    gradients: Tensor  # [n, everything]
