"""Rules: what an operation does to channels.

These can be given to `prunus.register_rule` for your own operations and layers:

    elementwise   each output position depends only on the same input position
    channelwise   each output channel depends only on the same input channel; parameters have shape [channels, ...]
    spatial(k)    each output channel depends only on the same input channel; the last k dimensions change size
    combine       several tensors meet position by position (multiply, maximum): their channels are pruned together
    add           as combine, for sums: the channels become a stream
    structural    elements are only moved: the operation itself runs on the labels
    unknown       nothing is known: the channels are kept
"""

from prunus.graph.rules.layers import channelwise, spatial
from prunus.graph.rules.pointwise import add, combine, elementwise, unknown
from prunus.graph.rules.reshaping import structural

__all__ = ["add", "channelwise", "combine", "elementwise", "spatial", "structural", "unknown"]
