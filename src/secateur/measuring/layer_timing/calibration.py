"""How long layers take inside a network, from two whole networks: the unpruned one and a smaller one.

Inside a network a layer takes another time than alone: what it reads may have left the cache, or an engine may fuse it
with its neighbours. Additions, pooling and overhead take time too. Both show only in whole networks, so two are timed:

    whole(n) = scale * layers(n) + remainder * outside(n)        n: unpruned, and with half of its channels

layers(n) is the sum of the times of the layers alone, outside(n) the share of what layers write for others than layers.
"""

from __future__ import annotations

import numpy as np

from secateur.channels.graph import ChannelGraph
from secateur.measuring.layer_timing.widths import widths_to_time

LEAST_DIFFERENCE = 0.1  # of the unpruned network's layers; a smaller one says nothing about the scale
LOWEST = 0.5  # smallest scale: layers do not take less than half of their time alone


def half_of_channels(graph: ChannelGraph) -> dict[str, tuple[int, ...]]:
    """Kept channels of the smaller network: half of each unit inside a block, or of each unit if all are streams."""
    inner = [unit for unit in graph.units.values() if unit.kind == "private"]
    keep = {}
    for unit in inner or graph.units.values():
        steps = unit.width // unit.granule
        half = min(widths_to_time(steps), key=lambda count: abs(count - steps / 2))
        blocks = [np.flatnonzero(unit.blocks == block)[:half] for block in np.unique(unit.blocks)]
        keep[unit.name] = sorted(int(channel) for block in blocks for channel in block)
    return graph.balance(keep)


def scale_inside(whole: tuple[float, float], layers: tuple[float, float], outside: float) -> float:
    """Seconds of a layer inside the network for each second alone.

    whole, layers: seconds of the unpruned and of the smaller network; outside: see above, for the smaller one.

    The two equations are solved for the scale. It is bounded, because times are never exact: with the highest scale
    nothing remains for what is not a layer. Networks that hardly differ say nothing; then the scale is 1, or less if
    the layers alone take longer than the network.
    """
    if not layers[0]:  # no layer was timed: all is remainder
        return 1.0
    highest = whole[0] / layers[0]
    difference = outside * layers[0] - layers[1]
    if difference < LEAST_DIFFERENCE * layers[0]:
        return min(1.0, highest)
    found = (outside * whole[0] - whole[1]) / difference
    return min(highest, max(LOWEST * min(1.0, highest), found))
