"""Which units take part in pruning."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterable, Sequence

from torch import nn

from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.scoring.scores import Scores
from prunus.util.registry import nearest

logger = logging.getLogger(__name__)


def candidates(graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> list[str]:
    """Names of the units that may be pruned.

    Patterns match names of units and of their layers ("layer1.*", "*:in"). Without `only`, the classifier's selection
    from a stream and units between two linear layers are left out. Linear layers over tokens are like convolutions.
    """
    chosen = []
    for name, unit in graph.units.items():
        names = [name, name.partition(":")[0]]
        if _matches(names, exclude) or (only and not _matches(names, only)):
            continue
        linear = [_classifies(graph, reader.module) for reader in unit.readers]
        left_alone = unit.kind == "stream" and linear == [True]
        left_alone |= all((*linear, *(_classifies(graph, writer.module) for writer in unit.writers)))
        if only or not left_alone:
            chosen.append(name)
    if not chosen:
        raise DecideError(_why_none(graph, exclude, only))
    return chosen


def scored(graph: ChannelGraph, scores: Scores, names: Sequence[str]) -> list[str]:
    """The units among `names` that have scores; an error if the scores are not those of this network."""
    known = [name for name in names if name in scores.values]
    if not known:
        raise DecideError("the scores have none of the graph's units; score the network that you prune")
    for name in known:
        if len(scores.values[name]) != graph.units[name].width:
            raise DecideError(
                f"unit {name!r} has {graph.units[name].width} channels and {len(scores.values[name])} scores; "
                "score the network that you prune"
            )
    return known


def check_patterns(
    graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = (), original: Iterable[str] = ()
) -> None:
    """DecideError if a pattern matches nothing, with the nearest names.

    A pattern of layers that are not pruned anyway excludes nothing: a warning.

    original: units of the original network, if `graph` is that of a network that has been pruned before.
    """
    units = [*dict.fromkeys([*graph.units, *original])]
    names = [*dict.fromkeys([*units, *(name.partition(":")[0] for name in units)])]
    for option, patterns in (("only", only), ("exclude", exclude)):
        for pattern in patterns:
            if _matches(names, [pattern]) or (option == "exclude" and _matches([*graph.frozen], [pattern])):
                continue
            layer = next((name for name in graph.layers if fnmatch.fnmatch(name, pattern)), None)
            if option == "exclude" and layer is not None:
                logger.warning(
                    "exclude: %r matches %s, which has no unit of its own: it excludes nothing", pattern, layer
                )
                continue
            frozen = next((name for name in graph.frozen if fnmatch.fnmatch(name, pattern)), None)
            if frozen is not None:
                raise DecideError(f"{option}: {frozen} cannot be pruned: {graph.frozen[frozen]}")
            near = nearest(pattern, names)
            hint = f"The nearest names are {', '.join(near)}" if near else f"Names are such as {', '.join(names[:5])}"
            if not pattern.endswith("*") and any(name.startswith(f"{pattern.rstrip('.')}.") for name in names):
                hint = f"For all layers inside it, write '{pattern}.*'"
            raise DecideError(
                f"{option}: the pattern {pattern!r} matches no unit and no layer that can be pruned. {hint}. "
                "`prunus inspect` lists all of them."
            )


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns for name in names)


def _classifies(graph: ChannelGraph, name: str) -> bool:
    """Whether a layer is linear and works on whole images: those of transformers work on every token."""
    layer = graph.layers.get(name)
    return isinstance(graph.model.get_submodule(name), nn.Linear) and (layer is None or layer.positions == 1)


def _why_none(graph: ChannelGraph, exclude: Sequence[str], only: Sequence[str]) -> str:
    if exclude or only:
        return "no unit is left to prune: the patterns exclude all of them. `prunus inspect` lists units."
    name = type(graph.model).__name__
    if all(layer.kind in ("linear", "product") for layer in graph.layers.values()):
        return (
            f"{name} has no convolutions that prunus can see, and without patterns only their channels are pruned. "
            "To prune linear layers, name them with only="
        )
    if graph.units:
        return (
            f"no unit of {name} is pruned by default: its units are {', '.join([*graph.units][:5])}, the classifier's "
            "input or between linear layers. To prune them, name them with only="
        )
    reasons = [f"{layer}: {reason}" for layer, reason in [*graph.frozen.items()][:3]]
    return f"{name} has no channels that can be removed. {'; '.join(reasons)}"
