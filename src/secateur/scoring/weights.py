"""Weights of a unit's channels: filters of its writers, slices of its readers, and batch-norm scales between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Indices, Reader, Unit, Writer

CHUNK = 1 << 18  # number of weights that are squared at a time


def input_slices(layer: nn.Module, weight: Tensor, inputs: Indices) -> Tensor:
    """The weights of `layer` for each channel: [n, everything], for positions [n, m] on its input axis."""
    positions = torch.from_numpy(inputs).to(weight.device)
    return _entries(layer, weight, positions, rows=isinstance(layer, _ConvTransposeNd)).flatten(1)


def output_filters(layer: nn.Module, weight: Tensor, outputs: Indices) -> Tensor:
    """The filters of `layer` that write each channel: [n, everything], for filter numbers [n, m]."""
    positions = torch.from_numpy(outputs).to(weight.device)
    return _entries(layer, weight, positions, rows=not isinstance(layer, _ConvTransposeNd)).flatten(1)


def _entries(layer: Any, weight: Tensor, positions: Tensor, *, rows: bool) -> Tensor:
    """Rows or columns of a weight [groups x rows, columns, ...], with columns numbered through all groups.

    Outputs are rows and inputs are columns; in a transposed convolution it is the other way round.
    """
    if rows:
        return weight[positions]  # [n, m, columns, ...]
    groups = getattr(layer, "groups", 1)
    per_group = weight.shape[1]
    grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])  # [g, rows, columns, ...]
    return grouped[positions // per_group, :, positions % per_group]  # [n, m, rows, ...]


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
    weight = _weight(layer)
    if isinstance(layer, _ConvTransposeNd):
        norms: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1)
        return norms.double().square().cpu()
    groups = getattr(layer, "groups", 1)
    parts = []
    for rows in torch.chunk(weight.flatten(1), groups):  # [rows of the group, columns x kernel]
        few = max(1, CHUNK // rows.shape[1])
        sums = [part.square().sum(0).double() for part in torch.split(rows, few)]
        parts.append(torch.stack(sums).sum(0).view(weight.shape[1], -1).sum(1))
    return torch.cat(parts).cpu()


def filter_places(unit: Unit) -> tuple[Writer, ...] | tuple[Reader, ...]:
    """Where a unit's filters are: in its writers, or for a stream, which has many writers, in its readers."""
    return unit.writers if unit.kind == "private" else unit.readers


def filters(graph: ChannelGraph, unit: Unit, weights: dict[str, Tensor] | None = None) -> Tensor:
    """[width, everything] the unit's filters of all layers, concatenated, in float64; 0 if a layer lacks a channel.

    weights: tensors to use instead of the layers' weights, such as their gradients.
    """
    parts = []
    for place in filter_places(unit):
        layer = graph.model.get_submodule(place.module)
        weight = _weight(layer) if weights is None else weights[place.module]
        if isinstance(place, Writer):
            found = output_filters(layer, weight, place.outputs)
        else:
            found = input_slices(layer, weight, place.inputs)
        part = torch.zeros(unit.width, found.shape[1], dtype=torch.float64)
        part[torch.from_numpy(place.channels)] = found.double().cpu()
        parts.append(part)
    return torch.cat(parts, 1)


def scales(graph: ChannelGraph, unit: Unit) -> Tensor | None:
    """[width] the largest |scale| of the batch norms that each channel passes; None if some channel passes none.

    For a stream whose readers select their own channels, only norms of the unit's own reader count.
    """
    numbers = graph.grouped.channels[unit.name]
    place = np.full(graph.found.channels, -1)
    place[numbers] = np.arange(unit.width)
    alone = unit.kind == "stream" and graph.streams == "select"
    found = torch.full((unit.width,), -1.0, dtype=torch.float64)
    for name, vector in graph.found.passes.items():
        norm = graph.model.get_submodule(name)
        if not isinstance(norm, _BatchNorm) or norm.weight is None:
            continue
        if alone and graph.selections.readers.get(name) != unit.readers[0].module:
            continue
        at = np.where(vector >= 0, place[np.maximum(vector, 0)], -1)  # [C] position -> the unit's channel
        mine = torch.from_numpy(np.flatnonzero(at >= 0))
        scale = norm.weight.detach().abs().double().cpu()[mine]
        found = found.scatter_reduce(0, torch.from_numpy(at[at >= 0]), scale, "amax")
    return None if bool((found < 0).any()) else found


def _weight(layer: nn.Module) -> Tensor:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.detach()
