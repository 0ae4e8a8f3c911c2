"""Multiply-adds of convolutions and linear layers per image."""

from secateur.channels.cost import cost_of
from secateur.channels.graph import ChannelGraph
from secateur.deciding.costs import CostEntry, CostOf, LayeredCost


def macs(graph: ChannelGraph) -> CostOf:
    """MACs in closed form: no model is built."""
    return LayeredCost(
        lambda keep: float(graph.cost(keep).macs),
        lambda name, inputs, outputs: cost_of(graph.layers[name], inputs, outputs).macs,
        name="macs",
    )


ENTRY = CostEntry(of=macs)
