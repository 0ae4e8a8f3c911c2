"""Seconds per batch, from a table of layer timings measured on this machine."""

from secateur.channels.graph import ChannelGraph
from secateur.deciding.costs import CostEntry, CostOf
from secateur.measuring.layer_timing.measure import latency_table


def latency(graph: ChannelGraph) -> CostOf:
    """Time of the layers in eager mode, with their selections; without what is not a layer."""
    table = latency_table(graph)
    return lambda keep: sum(table.by_layer(graph, keep).values())


ENTRY = CostEntry(of=latency, measured=True)
