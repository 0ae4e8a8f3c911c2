"""Weights of convolutions and linear layers."""

from secateur.channels.cost import cost_of
from secateur.channels.graph import ChannelGraph
from secateur.deciding.costs import CostEntry, CostOf, LayeredCost


def params(graph: ChannelGraph) -> CostOf:
    """Number of weights in closed form: no model is built."""
    return LayeredCost(
        lambda keep: float(graph.cost(keep).params),
        lambda name, inputs, outputs: cost_of(graph.layers[name], inputs, outputs).params,
        name="params",
    )


ENTRY = CostEntry(of=params)
