"""Multiply-adds of convolutions and linear layers per image."""

from secateur.channels.graph import ChannelGraph
from secateur.deciding.costs import CostEntry, CostOf


def macs(graph: ChannelGraph) -> CostOf:
    """MACs in closed form: no model is built."""
    return lambda keep: float(graph.cost(keep).macs)


ENTRY = CostEntry(of=macs)
