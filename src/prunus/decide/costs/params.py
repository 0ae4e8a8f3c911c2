"""Weights of convolutions and linear layers."""

from prunus.decide.costs import CostEntry, CostOf, LayeredCost
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.cost import cost_of


def params(graph: ChannelGraph) -> CostOf:
    """Number of weights in closed form: no model is built."""
    return LayeredCost(
        lambda keep: float(graph.cost(keep).params),
        lambda name, inputs, outputs: cost_of(graph.layers[name], inputs, outputs).params,
        name="params",
    )


ENTRY = CostEntry(name="params", help="Weights of convolutions and linear layers", of=params)
