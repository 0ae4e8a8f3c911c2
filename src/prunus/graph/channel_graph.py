"""The channel graph of a network: its units, their cost, and what must stay as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from prunus.errors import PlanError, TraceError
from prunus.graph.compare import RANDOM
from prunus.graph.cost import (
    Cost,
    Layer,
    Liveness,
    SelectionChains,
    cost_under,
    find_alive,
    find_chains,
    find_layers,
    writers_left_empty,
)
from prunus.graph.discover import ChannelAnalysis, discover, tensors_behind
from prunus.graph.grouping import make_units
from prunus.graph.labels import Mismatch, present
from prunus.graph.plan import Plan, balanced, checked_indices, difference, example_shapes, fingerprint, remember_plan
from prunus.graph.record import trace_calls
from prunus.graph.replay import check_plan, replay, replay_plan
from prunus.graph.rules.rulebook import is_leaf
from prunus.graph.surgery import carve
from prunus.graph.traced import Example, Traced, check_example, check_network
from prunus.graph.trials import Trial, check_recording, constants_varied, may_write_weights, trials_for
from prunus.graph.units import Keep, Streams, Unit
from prunus.graph.verify import culprits, failure, layer_that_differs, verify
from prunus.util.options import check_choice
from prunus.util.state import generators_kept, module_state_kept

# Prove a graph: carry out trial plans that remove channels of every unit, and freeze what the network cannot lose.


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
        check_recording(graph.analysis.traced, next((t for t in trials if t.mode == "eval"), None), graph.example)
        return _prove_by_running(graph, trials)


# -- on labels


def _prove_on_labels(graph: ChannelGraph) -> ChannelGraph:
    for _ in range(1000):
        if not graph.units or not graph.analysis.depends_on_widths:
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
    found, numbers = graph.analysis, graph.grouped.channels
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


class ChannelGraph:
    """The readers and writers of every channel of a network. Made by `prunus.trace`; does not change the model.

    units: name -> Unit          channels that can be scored and pruned
    layers: name -> Layer        conv and linear layers and their cost
    frozen: name -> reason       layers whose channels cannot be removed, and why
    macs, params                 totals per image, counted as in the paper (weights of conv and linear layers)
    """

    def __init__(self, found: ChannelAnalysis, example: Example, streams: Streams) -> None:
        self.model: nn.Module = found.traced.model
        self.example = example
        self.streams: Streams = streams
        self.analysis = found
        self.layers: dict[str, Layer] = find_layers(found.traced)
        self.grouped = make_units(found, streams)
        self.units: dict[str, Unit] = self.grouped.units

    def __repr__(self) -> str:
        return (
            f"ChannelGraph({type(self.model).__name__}: {len(self.units)} units, {len(self.layers)} layers, "
            f"{self.macs:,} MACs, {self.params:,} parameters, {len(self.frozen)} frozen, streams={self.streams!r})"
        )

    # -- cost

    @property
    def macs(self) -> int:
        """Multiply-adds per image."""
        return sum(layer.macs for layer in self.layers.values())

    @property
    def params(self) -> int:
        """Weights of convolutions and linear layers."""
        return sum(layer.params for layer in self.layers.values())

    def cost(self, plan: Plan | Keep | None = None) -> Cost:
        """MACs and parameters under a plan, in total and per layer, in closed form: no model is built."""
        live = self.liveness({} if plan is None else self.keep_of(plan))
        return cost_under(self.layers, self.analysis, live, self.selections.readers)

    # -- plans

    def balance(self, keep: Keep) -> dict[str, tuple[int, ...]]:
        """The fewest channels to add to `keep` such that a plan can be made of it: the same number in each block of a
        unit, and at least one output for every layer."""
        self._check_names(keep)
        added = {name: balanced(self.units[name], kept) for name, kept in keep.items()}
        for writer in writers_left_empty(self.analysis, self.liveness(added)):
            name, channel = self._any_channel_of(writer)
            added[name] = tuple(sorted({*added[name], channel}))
        return added

    def keep_of(self, plan: Plan | Keep) -> Keep:
        """The kept channels of a plan. Raises PlanError if the plan is for another network."""
        if not isinstance(plan, Plan | Mapping):
            raise PlanError(f"expected a plan, got {type(plan).__name__}; check the order of the arguments")
        if not isinstance(plan, Plan):
            self._check_names(plan)
            return {name: checked_indices(name, self.units[name].width, kept) for name, kept in plan.items()}
        widths = {name: unit.width for name, unit in self.units.items()}
        if plan.fingerprint != self.fingerprint or dict(plan.widths) != widths:
            why = difference(plan, self.streams, self.units, type(self.model).__name__)
            raise PlanError(f"the plan is for another network: {why}")
        return plan.keep

    def check(self, keep: Keep) -> None:
        """Raise PlanError unless the network can be pruned to `keep`: every layer has an output, every axis fits."""
        for writer in writers_left_empty(self.analysis, self.liveness(keep)):
            name, channel = self._any_channel_of(writer)
            raise PlanError(
                f"{writer} would have no outputs left: no layer reads any of its channels. Keep one of them, "
                f"for example channel {channel} of unit {name!r}; graph.balance(keep) does that."
            )
        check_plan(self, keep)

    def liveness(self, keep: Keep) -> Liveness:
        """The channels that are left if each unit in `keep` keeps only these channels."""
        return find_alive(self.analysis, self.grouped, keep)

    def _check_names(self, keep: Keep) -> None:
        unknown = next((name for name in keep if name not in self.units), None)
        if unknown is not None:
            raise PlanError(f"no unit is called {unknown!r}")

    def _any_channel_of(self, writer: str) -> tuple[str, int]:
        for name, unit in self.units.items():
            for w in unit.writers:
                if w.module == writer:
                    return name, int(w.channels[0])
        raise PlanError(f"{writer} writes no channel of any unit")

    # -- structure

    @cached_property
    def selections(self) -> SelectionChains:
        """Where the channel selections of readers that select on their own go."""
        return find_chains(self.analysis, set(self.grouped.selecting.values()))

    @cached_property
    def frozen(self) -> dict[str, str]:
        """Layers whose outputs must all be kept, and layers without a rule: name -> reason in words."""
        covered = {w.module for unit in self.units.values() for w in unit.writers}
        reasons = dict(self.analysis.record.opaque)
        held = self.grouped.held
        for name, vector in self.analysis.writes.items():
            if name not in covered:
                why = next((held[c] for c in vector.tolist() if c in held), None)
                reasons.setdefault(name, why or "its channels go through an addition whose readers cannot select")
        reasons |= {name: why for name, why in self.analysis.held_readers.items() if name not in covered}
        return {name: reasons[name] for name in reasons if name in self.layers or name in self.analysis.record.opaque}

    @property
    def prunable(self) -> list[str]:
        """Layers, except depthwise ones, whose inputs or outputs belong to a unit."""
        names = {r.module for u in self.units.values() for r in u.readers}
        names |= {w.module for u in self.units.values() for w in u.writers}
        return [n for n, layer in self.layers.items() if n in names and not layer.depthwise]

    @cached_property
    def example_shapes(self) -> Any:
        """The example as JSON, with shapes and types instead of tensors."""
        return example_shapes(self.example)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the network's structure: layers, widths and units, without the weights."""
        return fingerprint(self.streams, self.layers, self.units)

    def traced_for(self, inputs: Example) -> Traced:
        """The traced network for these inputs, with any number of images.

        Code that looks at sizes may have seen the number of images of the example, so it is traced again.
        """
        traced = self.analysis.traced
        if not traced.guards:
            return traced
        return trace_calls(self.model, inputs, is_leaf)

    def holding(self, reasons: Mapping[str, str]) -> ChannelGraph:
        """The graph of the same network without these units (name -> why their channels must be kept)."""
        held, readers = dict(self.analysis.held), dict(self.analysis.held_readers)
        for name, reason in reasons.items():
            reader = self.grouped.selecting.get(name)
            if reader is not None:
                readers.setdefault(reader, reason)
            for channel in self.grouped.channels[name].tolist() if reader is None else ():
                held.setdefault(channel, reason)
        return ChannelGraph(replace(self.analysis, held=held, held_readers=readers), self.example, self.streams)


def trace(model: nn.Module, example: Example, streams: Streams = "select", *, check: bool = True) -> ChannelGraph:
    """Follow every channel of `model` from the layers that write it to the layers that read it.

    example: an input of the shape that the network is used with, on the model's device: a tensor, a tuple of
        positional arguments or a dict of keyword arguments. MACs are counted for its size.
    streams: how to treat channels that go through additions. "select": each layer that reads the stream selects the
        channels that it reads (the paper's channel selection layer). "coupled": all readers and writers drop a channel
        together, and no selection is needed.

    check: at the end, carry out a trial plan and run it: units without which the network computes something else are
        frozen. Without it, trial plans are only followed on labels, and `prune` is the first to run the result.

    The model is not changed: attributes, buffers, mode, random state, hooks and weights are as they were.
    """
    check_choice("streams", streams, ("select", "coupled"), TraceError)
    check_network(model)
    check_example(example)
    with generators_kept():
        return prove(ChannelGraph(discover(model, example), example, streams), by_running=check)


# Remove channels: a new, smaller model of the same class.


def prune(graph: ChannelGraph, plan: Plan, *, check: bool = True) -> nn.Module:
    """A new model of the same class without the channels that the plan drops. `graph.model` is not changed.

    Where a layer reads a part of a stream, the layer (or the batch norm in front of it, if no other layer uses it)
    selects its channels. The names of parameters do not change.

    check: run the new model and the zeroed original on the example and on random inputs of its shape, and raise
        PlanError if their outputs differ by more than rounding.
    """
    if not isinstance(graph, ChannelGraph):
        raise PlanError(f"expected prune(graph, plan) with the graph of prunus.trace, got {type(graph).__name__}")
    keep = graph.keep_of(plan)
    record, slices = replay_plan(graph, keep)
    try:
        model = carve(graph, record, slices)
    except (ValueError, RuntimeError, IndexError, TypeError) as error:
        raise PlanError(f"the plan cannot be carried out on the layers of the network: {error}") from error
    if check:
        verify(graph, keep, model)
    remember_plan(model, graph.model, plan)
    return model
