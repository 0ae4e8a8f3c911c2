"""Prove a graph: replay trial plans that remove channels of every unit, and hold what the network cannot do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from secateur.channels.discovery.sources import tensors_behind
from secateur.channels.labels.label_tensors import present
from secateur.channels.labels.record import Mismatch
from secateur.channels.replay import replay
from secateur.channels.units import Unit
from secateur.errors import PlanError

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph


def prove(graph: ChannelGraph) -> ChannelGraph:
    """The graph in which all units can be pruned. Units for which a trial plan fails are held, with the reason."""
    for _ in range(1000):
        if not graph.units or not graph.found.depends_on_widths:
            return graph
        try:
            uneven = any(unit.granule > 1 for unit in graph.units.values())
            for stagger in (0, 1) if uneven else (0,):
                replay(graph, {name: _trial(unit, stagger) for name, unit in graph.units.items()})
        except Mismatch as error:
            graph = _hold(graph, error)
        else:
            return graph
    raise PlanError("the channels of this network cannot be told apart")  # pragma: no cover


def _trial(unit: Unit, stagger: int) -> list[int]:
    """Drop half of each block: the first half, which moves all later channels, or another half in each block."""
    kept = []
    for block in range(unit.granule):
        inside = np.roll(np.flatnonzero(unit.blocks == block), -stagger * block)
        kept += inside[len(inside) // 2 :].tolist()
    return sorted(kept)


def _hold(graph: ChannelGraph, error: Mismatch) -> ChannelGraph:
    """Hold the units whose channels meet at the node where the replay failed."""
    found, numbers = graph.found, graph.grouped.channels
    tensors = tensors_behind(error.node, found.record.values)
    labels = np.concatenate([np.zeros(0, np.int64), *(present(tensor) for tensor in tensors)])
    channels = np.unique(found.of_label[labels])
    units = [name for name in graph.units if np.isin(numbers[name], channels).any()] or list(graph.units)
    reason = f"{error.node.target} does not work with fewer channels ({error})"
    return graph.holding((c for name in units for c in numbers[name].tolist()), reason)
