"""Multiply-adds of convolutions and linear layers per image."""

from prunus.decide.costs import CostEntry, CostOf, LayeredCost
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.cost import cost_of


def macs(graph: ChannelGraph) -> CostOf:
    """MACs in closed form: no model is built."""
    return LayeredCost(
        lambda keep: float(graph.cost(keep).macs),
        lambda name, inputs, outputs: cost_of(graph.layers[name], inputs, outputs).macs,
        name="macs",
    )


ENTRY = CostEntry(name="macs", help="Multiply-adds of convolutions and linear layers per image", of=macs)
