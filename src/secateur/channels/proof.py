"""Prove a graph: carry out trial plans that remove channels of every unit, and freeze what the network cannot lose.

The plans are first replayed on labels, which is quick and says why a plan fails. Then one of them is carried out, and
the pruned and the zeroed network run on a random input: this finds whatever the rules did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from secateur.base.module_state import module_state_kept
from secateur.channels.discovery.sources import tensors_behind
from secateur.channels.labels.label_tensors import present
from secateur.channels.labels.record import Mismatch
from secateur.channels.replay import replay
from secateur.channels.units import Keep, Unit
from secateur.channels.verifying.comparison import RANDOM
from secateur.channels.verifying.recorded import check_recording
from secateur.channels.verifying.trials import Trial, may_write_weights, trials_for
from secateur.channels.verifying.varied_weights import constants_varied
from secateur.channels.verifying.verification import culprits, failure, layer_that_differs
from secateur.errors import PlanError

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph


def prove(graph: ChannelGraph, *, by_running: bool = True) -> ChannelGraph:
    """The graph in which all units can be pruned. Units for which a trial plan fails are frozen, with the reason.

    by_running: also run the pruned and the zeroed network, not only labels.
    """
    graph = _prove_on_labels(graph)
    if not graph.units or not by_running:
        return graph
    model = graph.model
    # Hooks of copies may write to the model, and so may code for training, which the trials run too.
    with module_state_kept(model, weights=may_write_weights(model)), constants_varied(model):
        trials = trials_for(graph.model, graph.example)
        check_recording(graph.found.traced, next((t for t in trials if t.mode == "eval"), None), graph.example)
        return _prove_by_running(graph, trials)


# -- on labels


def _prove_on_labels(graph: ChannelGraph) -> ChannelGraph:
    for _ in range(1000):
        if not graph.units or not graph.found.depends_on_widths:
            return graph
        try:
            uneven = any(unit.granule > 1 for unit in graph.units.values())
            for half in (_half, _staggered_half, _scattered_half) if uneven else (_half,):
                replay(graph, graph.balance({name: half(unit) for name, unit in graph.units.items()}))
        except Mismatch as error:
            graph = _hold(graph, error)
        else:
            return graph
    raise PlanError("the channels of this network cannot be told apart")  # pragma: no cover


def _half(unit: Unit) -> list[int]:
    """Drop the first half of each block, which moves all later channels."""
    return _kept(unit, 0, unit.width // unit.granule // 2)


def _staggered_half(unit: Unit) -> list[int]:
    """Drop another half of each block."""
    return _kept(unit, 1, unit.width // unit.granule // 2)


def _scattered_half(unit: Unit) -> list[int]:
    """Drop a random half of each block: shifts may agree where the blocks are few and small, chance does not."""
    draw, dropped = np.random.default_rng(0), unit.width // unit.granule // 2
    blocks = [draw.permutation(np.flatnonzero(unit.blocks == block)) for block in range(unit.granule)]
    return sorted(channel for inside in blocks for channel in inside[dropped:].tolist())


def _kept(unit: Unit, stagger: int, dropped: int) -> list[int]:
    kept = []
    for block in range(unit.granule):
        inside = np.roll(np.flatnonzero(unit.blocks == block), -stagger * block)
        kept += inside[dropped:].tolist()
    return sorted(kept)


def _hold(graph: ChannelGraph, error: Mismatch) -> ChannelGraph:
    """Freeze the units whose channels meet at the node where the replay failed, or as closely before it as possible."""
    found, numbers = graph.found, graph.grouped.channels
    units: list[str] = []
    for tensors in tensors_behind(error.node, found.record.values):
        labels = np.concatenate([np.zeros(0, np.int64), *(present(tensor) for tensor in tensors)])
        channels = np.unique(found.of_label[labels])
        units = [name for name in graph.units if np.isin(numbers[name], channels).any()]
        if units:
            break
    units = units or list(graph.units)
    reason = f"{error.where} does not work with fewer channels ({error})"
    return graph.holding(dict.fromkeys(units, reason))


# -- by running


def _prove_by_running(graph: ChannelGraph, trials: Sequence[Trial]) -> ChannelGraph:
    while graph.units:
        reasons = _culprits(graph, trials)
        if not reasons:
            return graph
        graph = graph.holding(reasons)
    return graph


def _culprits(graph: ChannelGraph, trials: Sequence[Trial]) -> dict[str, str]:
    """Units that must not lose channels -> why."""
    keep: Keep = graph.balance({name: _uneven(unit, i) for i, (name, unit) in enumerate(graph.units.items())})
    found = failure(graph, keep, trials)
    if found is None or found == RANDOM:  # `prune` compares again, on the plan itself
        return {}
    guilty = culprits(list(keep), lambda names: failure(graph, _part(keep, names), trials) is not None)
    return {name: _why(graph, {name: keep[name]}, trials) for name in guilty}


def _part(keep: Keep, names: Sequence[str]) -> Keep:
    return {name: keep[name] for name in names}


def _uneven(unit: Unit, number: int) -> list[int]:
    """Keep about a quarter of some units and three eighths of others, aligned in some and staggered in others.

    The first channel of a block always goes, because that moves all others.
    """
    size = unit.width // unit.granule
    kept = max(min(2, size - 1), size * (2 + number % 2) // 8)
    return _kept(unit, number // 2 % 2, size - kept)


def _why(graph: ChannelGraph, keep: Keep, trials: Sequence[Trial]) -> str:
    """Why a unit cannot lose channels, found by pruning it alone."""
    for trial in trials:
        found = failure(graph, keep, [trial])
        if found is not None:
            layer = layer_that_differs(graph, keep, trial.inputs, trial.mode)
            when = f" {trial.mode}".replace(" eval", "").replace(" training", " in training mode")
            return f"with fewer channels the network computes something else{when}: {found}" + (
                f", first at {layer}" if layer else ""
            )
    return "with fewer channels of it and of others the network computes something else"
