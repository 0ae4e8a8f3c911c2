"""The evidence that metrics take: statistics and weights of a unit's channels, never the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Reader, Unit, Writer
from prunus.scoring.moments import ClassMoments


@dataclass(frozen=True, eq=False)
class Channels:
    """n channels of a unit as they enter the layers that share one tensor.

    Attributes:
        unit: The name of the unit.
        moments: Of K classes [K, n].
        reader_norms: Squared norm of the weights of those layers for each channel [n].
    """

    unit: str
    moments: ClassMoments
    reader_norms: Tensor


@dataclass(frozen=True, eq=False)
class Maps:
    """Feature maps of n channels for a sample of images."""

    unit: str
    labels: Tensor  # [N] numbered 0 .. K - 1 without gaps
    maps: Tensor  # [N, n, d]
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
class ReaderGroup:
    """One group of a layer that reads a unit's channels; layers that are not grouped convolutions have one group."""

    channels: Tensor  # [a] channels of the unit that it reads
    columns: Tensor  # [a, t] their positions among the group's inputs, one per kernel tap and copy
    weight: Tensor  # [o, n]
    covariance: Tensor  # [n, n] of its inputs; [n] only the variances if it is too wide
    rows: int  # that the covariance is made from
    output_weights: Tensor | None  # [m, o] R: errors e of its outputs change the network's by |R e|^2


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


# Weights of a unit's channels: filters of its writers, slices of its readers, and batch-norm scales between them.

CHUNK = 1 << 18  # number of weights that are squared at a time


def filter_places(unit: Unit) -> tuple[Writer, ...] | tuple[Reader, ...]:
    """Where a unit's filters are: in its writers, or for a stream, which has many writers, in its readers."""
    return unit.writers if unit.kind == "private" else unit.readers


def filters(graph: ChannelGraph, unit: Unit, weights: Mapping[str, Tensor] | None = None) -> Tensor:
    """[width, everything] the unit's filters of all layers, see `weights_at`."""
    return weights_at(graph, unit, filter_places(unit), weights)


def weights_at(
    graph: ChannelGraph,
    unit: Unit,
    places: Sequence[Writer] | Sequence[Reader],
    weights: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """[width, everything] the weights for each channel of all these layers, in float64; 0 if a layer lacks a channel.

    weights: tensors to use instead of the layers' weights, such as their gradients.
    """
    parts = []
    for place in places:
        layer: Any = graph.model.get_submodule(place.module)
        weight = layer.weight.detach() if weights is None else weights[place.module]
        positions = torch.from_numpy(place.outputs if isinstance(place, Writer) else place.inputs).to(weight.device)
        # A weight is [groups x rows, columns, ...]. Outputs are rows, and inputs are columns that are numbered through
        # all groups; in a transposed convolution it is the other way round.
        if isinstance(place, Writer) != isinstance(layer, _ConvTransposeNd):
            rows = weight[positions]  # [n, m, columns, ...]
        else:
            groups, per_group = getattr(layer, "groups", 1), weight.shape[1]
            grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])  # [g, rows, columns, ...]
            rows = grouped[positions // per_group, :, positions % per_group]  # [n, m, rows, ...]
        rows = rows.flatten(1)
        part = torch.zeros(unit.width, rows.shape[1], dtype=torch.float64)
        part[torch.from_numpy(place.channels)] = rows.double().cpu()
        parts.append(part)
    return torch.cat(parts, 1)


def reader_norms(graph: ChannelGraph, readers: Sequence[Reader], width: int) -> Tensor:
    """[width] squared norm of these readers' weights for each of a unit's channels, in float64."""
    norms = torch.zeros(width, dtype=torch.float64)
    for reader in readers:
        every = _input_squares(graph.model.get_submodule(reader.module))  # [inputs]
        norms[torch.from_numpy(reader.channels)] += every[torch.from_numpy(reader.inputs)].sum(1)
    return norms


def _input_squares(layer: Any) -> Tensor:
    """[inputs] squared norm of the weights for each position of the input axis, in float64.

    A few rows at a time are squared and summed, so that no temporary tensor has the size of the weights.
    """
    weight = layer.weight.detach()
    if isinstance(layer, _ConvTransposeNd):
        norms: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1)
        return norms.double().square().cpu()
    parts = []
    for rows in torch.chunk(weight.flatten(1), getattr(layer, "groups", 1)):  # [rows of the group, columns x kernel]
        few = max(1, CHUNK // rows.shape[1])
        sums = [part.square().sum(0).double() for part in torch.split(rows, few)]
        parts.append(torch.stack(sums).sum(0).view(weight.shape[1], -1).sum(1))
    return torch.cat(parts).cpu()


def scales(graph: ChannelGraph, unit: Unit) -> Tensor | None:
    """[width] the largest |scale| of the batch norms that each channel passes; None if some channel passes none.

    For a stream whose readers select their own channels, only norms of the unit's own reader count.
    """
    place = np.full(graph.analysis.channels, -1)  # channel of the network -> of the unit
    place[graph.grouped.channels[unit.name]] = np.arange(unit.width)
    alone = unit.kind == "stream" and graph.streams == "select"
    largest = torch.full((unit.width,), -1.0, dtype=torch.float64)
    for name, vector in graph.analysis.passes.items():
        norm = graph.model.get_submodule(name)
        if not isinstance(norm, _BatchNorm) or norm.weight is None:
            continue
        if alone and graph.selections.readers.get(name) != unit.readers[0].module:
            continue
        at = np.where(vector >= 0, place[np.maximum(vector, 0)], -1)  # [C] position -> the unit's channel
        mine = torch.from_numpy(np.flatnonzero(at >= 0))
        scale = norm.weight.detach().abs().double().cpu()[mine]
        largest = largest.scatter_reduce(0, torch.from_numpy(at[at >= 0]), scale, "amax")
    return None if bool((largest < 0).any()) else largest
