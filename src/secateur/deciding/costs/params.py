"""Weights of convolutions and linear layers."""

from secateur.channels.graph import ChannelGraph
from secateur.deciding.costs import CostEntry, CostOf


def params(graph: ChannelGraph) -> CostOf:
    """Number of weights in closed form: no model is built."""
    return lambda keep: float(graph.cost(keep).params)


ENTRY = CostEntry(of=params)
