"""Which units take part in pruning."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from torch import nn

from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Unit
from secateur.errors import DecideError
from secateur.scoring.scores import Scores


def candidates(graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> list[str]:
    """Names of the units that may be pruned.

    Patterns match names of units and of their layers ("layer1.*", "*:in"). Without `only`, the classifier's selection
    from a stream and units between two linear layers are left out.
    """
    chosen = []
    for name, unit in graph.units.items():
        names = [name, name.partition(":")[0]]
        if _matches(names, exclude) or (only and not _matches(names, only)):
            continue
        if only or not _left_alone(graph, unit):
            chosen.append(name)
    if not chosen:
        raise DecideError("no unit is left to prune: the patterns exclude all of them. `secateur inspect` lists units.")
    return chosen


def scored(graph: ChannelGraph, scores: Scores, names: Sequence[str]) -> list[str]:
    """The units among `names` that have scores; an error if the scores are not those of this network."""
    found = [name for name in names if name in scores.values]
    if not found:
        raise DecideError("the scores have none of the graph's units; score the network that you prune")
    for name in found:
        if len(scores.values[name]) != graph.units[name].width:
            raise DecideError(
                f"unit {name!r} has {graph.units[name].width} channels and {len(scores.values[name])} scores; "
                "score the network that you prune"
            )
    return found


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns for name in names)


def _left_alone(graph: ChannelGraph, unit: Unit) -> bool:
    readers = [graph.model.get_submodule(reader.module) for reader in unit.readers]
    writers = [graph.model.get_submodule(writer.module) for writer in unit.writers]
    if unit.kind == "stream" and len(readers) == 1 and isinstance(readers[0], nn.Linear):
        return True
    return all(isinstance(layer, nn.Linear) for layer in (*readers, *writers))
