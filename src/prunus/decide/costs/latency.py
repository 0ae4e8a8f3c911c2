"""Seconds per batch, from a table of layer timings measured on this machine."""

from __future__ import annotations

import functools

import numpy as np

from prunus.decide.costs import CostEntry, CostOf, LayeredCost
from prunus.graph.channel_graph import ChannelGraph
from prunus.timing.latency_table import LatencyTable
from prunus.timing.layer_timing import latency_table


def table_cost(graph: ChannelGraph, table: LatencyTable) -> LayeredCost:
    """Predicted seconds per batch. Units keep numbers of channels at which their layers were timed.

    What is not a layer counts where its numbers are written: each layer has its part of the remainder.
    """
    selecting = {*graph.grouped.selecting.values()}
    seconds = functools.cache(table.seconds)

    def layer(name: str, inputs: int, outputs: int) -> float:
        if name not in table.times:  # a function of the network's own: its time is part of the remainder
            return 0.0
        selects = name in selecting and inputs < graph.layers[name].inputs
        rest = table.remainder * table.outside_part(name, int(outputs))
        return seconds(name, int(inputs), int(outputs), selects=selects) + rest

    return LayeredCost(
        lambda keep: table.predict(graph, keep),
        np.vectorize(layer, otypes=[np.float64], excluded=(0,)),
        table.widths(graph),
        "latency",
    )


def latency(graph: ChannelGraph) -> CostOf:
    """Seconds per batch in eager mode."""
    return table_cost(graph, latency_table(graph))


ENTRY = CostEntry(
    name="latency",
    help="Seconds per batch, from a table of layer timings measured on this machine",
    of=latency,
    measured=True,
)
