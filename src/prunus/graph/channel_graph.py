"""The channel graph of a network: its units, their cost, and what must stay as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunus.errors import PlanError, TraceError
from prunus.graph.branches import Removed, find_branches
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
from prunus.graph.discover import ChannelAnalysis, discover
from prunus.graph.memory import Memory, measure
from prunus.graph.merging import follow_widths
from prunus.graph.multihead import follow_mode, source_of
from prunus.graph.plan import WAYS, Plan, balanced, checked_indices, example_data, remember_plan
from prunus.graph.proof import prove, prove_branches, verify
from prunus.graph.record import trace_calls
from prunus.graph.replay import replay_plan
from prunus.graph.surgery import carve, queries_and_keys
from prunus.graph.traced import Example, Traced, check_example, check_network
from prunus.graph.trials import Trial, twin_for
from prunus.graph.units import AttentionCut, Keep, Norms, Streams, Unit, make_units
from prunus.util.options import check_choice
from prunus.util.state import collected_later, undisturbed


class ChannelGraph:
    """The readers and writers of every channel of a network. Made by `prunus.trace`; does not change the model.

    Attributes:
        units: name -> Unit, the channels that can be scored and pruned.
        layers: name -> Layer, the conv and linear layers and the products of attention, and their cost.
        frozen: name -> reason, the layers whose channels cannot be removed, and why.
        macs: multiply-adds per image, counted as in the paper (conv and linear layers), and those of attention.
        params: weights of conv and linear layers.
    """

    def __init__(self, analysis: ChannelAnalysis, example: Example, streams: Streams) -> None:
        self.model: nn.Module = analysis.traced.model
        self.example = example
        self.streams: Streams = streams
        self.norms: Norms = "compensated" if analysis.find_rule.compensates else "whole"
        self.attention: AttentionCut = "dims" if analysis.find_rule.dims else "heads"
        self.analysis = analysis
        self.layers: dict[str, Layer] = find_layers(analysis)
        self.grouped = make_units(analysis, streams)
        self.branches = find_branches(analysis, self.grouped)
        self.units: dict[str, Unit] = {}
        self.keep_branches(())
        self.trials: list[Trial] = []  # in which `trace` ran it
        self._branches_proven = False

    def __repr__(self) -> str:
        return (
            f"ChannelGraph({type(self.model).__name__}: {len(self.units)} units, {len(self.layers)} layers, "
            f"{self.macs:,} MACs, {self.params:,} parameters, {len(self.frozen)} frozen, streams={self.streams!r})"
        )

    def prove_branches(self) -> None:
        """Run the network without the branches that can vanish, once: units that must not lose theirs no longer can.

        Call it before plans are chosen that remove branches. `prune` runs each such plan in any case.
        """
        if not self._branches_proven:
            self._branches_proven = True
            prove_branches(self)

    def keep_branches(self, units: Collection[str]) -> None:
        """Branches that must not be removed with these units."""
        self.branches = {name: branch for name, branch in self.branches.items() if name not in units}
        self.units = {
            name: replace(unit, can_vanish=name in self.branches) for name, unit in self.grouped.units.items()
        }

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

    @cached_property
    def memory(self) -> Memory:
        """What activations take at each call, for one image: `graph.memory.peak()` in bytes. Runs the network once."""
        return measure(self)

    @property
    def ways(self) -> dict[str, Any]:
        """The arguments of `trace`, besides network and example."""
        return {way: getattr(self, way) for way in WAYS}

    def zeroing(self, unit: str) -> set[str]:
        """The layers that compute something else where channels of a unit are zeroed."""
        names = {reader.module for reader in (*self.units[unit].readers, *self.units[unit].norms)}
        return names | queries_and_keys(self, {unit: ()}).keys()

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
            return {
                name: checked_indices(name, unit.width, kept, unit.can_vanish)
                for name, kept in plan.items()
                for unit in (self.units[name],)
            }
        why = plan.difference_from(self)
        if why is not None:
            raise PlanError(f"the plan is for another network: {why}")
        for name, kept in plan.keep.items():
            checked_indices(name, self.units[name].width, kept, self.units[name].can_vanish)
        return plan.keep

    def check(self, keep: Keep) -> None:
        """Raise PlanError unless the network can be pruned to `keep`: every layer has an output, every axis fits."""
        for writer in writers_left_empty(self.analysis, self.liveness(keep)):
            name, channel = self._any_channel_of(writer)
            raise PlanError(
                f"{writer} would have no outputs left: no layer reads any of its channels. Keep one of them, "
                f"for example channel {channel} of unit {name!r}; graph.balance(keep) does that."
            )
        with undisturbed(self.model):
            replay_plan(self, keep)

    def liveness(self, keep: Keep) -> Liveness:
        """The channels that are left if each unit in `keep` keeps only these channels."""
        return find_alive(self.analysis, self.grouped, keep, self.removed_by(keep))

    def removed_by(self, keep: Keep) -> Removed:
        """The branches that are removed because their unit keeps no channel."""
        return Removed(tuple(self.branches[name] for name, kept in keep.items() if not len(kept)))

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
        reasons, frozen = dict(self.analysis.record.opaque), self.grouped.frozen
        for name, vector in self.analysis.writes.items():
            if name not in covered:
                why = next((frozen[c] for c in vector.tolist() if c in frozen), None)
                reasons.setdefault(name, why or "its channels go through an addition whose readers cannot select")
        reasons |= {name: why for name, why in self.analysis.frozen_readers.items() if name not in covered}
        return {name: reasons[name] for name in reasons if name in self.layers or name in self.analysis.record.opaque}

    @property
    def prunable(self) -> list[str]:
        """Layers, except depthwise ones, whose inputs or outputs belong to a unit."""
        names = {r.module for u in self.units.values() for r in u.readers}
        names |= {w.module for u in self.units.values() for w in u.writers}
        return [name for name in self.weighted if name in names]

    @property
    def weighted(self) -> list[str]:
        """Layers with weights of their own for each pair of channels: no depthwise ones, no products of attention."""
        return [name for name, layer in self.layers.items() if layer.kind != "product" and not layer.depthwise]

    @cached_property
    def example_shapes(self) -> Any:
        """The example as JSON, with shapes and types instead of tensors."""
        return example_data(list(self.example) if type(self.example) is tuple else self.example)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the network's structure: layers, widths and units, without the weights."""
        layers = [[x.name, x.kind, x.inputs, x.outputs, x.groups, x.kernel] for x in self.layers.values()]
        units = [[u.name, u.width, u.granule, u.kind] for u in self.units.values()]
        text = json.dumps([self.streams, layers, units], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def traced_for(self, inputs: Example) -> Traced:
        """The traced network for these inputs, with any number of images.

        Code that looks at sizes may have seen the number of images of the example, so it is traced again.
        """
        return trace_calls(self.model, inputs) if self.analysis.traced.guards else self.analysis.traced

    def without(self, reasons: Mapping[str, str]) -> ChannelGraph:
        """The graph of the same network without these units (name -> why their channels must be kept)."""
        frozen, readers = dict(self.analysis.frozen), dict(self.analysis.frozen_readers)
        for name, reason in reasons.items():
            reader = self.grouped.selecting.get(name)
            if reader is not None:
                readers.setdefault(reader, reason)
            for channel in self.grouped.channels[name].tolist() if reader is None else ():
                frozen.setdefault(channel, reason)
        analysis = replace(self.analysis, frozen=frozen, frozen_readers=readers)
        return ChannelGraph(analysis, self.example, self.streams)


def trace(
    model: nn.Module,
    example: Example,
    streams: Streams = "select",
    *,
    norms: Norms = "whole",
    attention: AttentionCut = "heads",
    check: bool = True,
) -> ChannelGraph:
    """Follow every channel of `model` from the layers that write it to the layers that read it.

    The model is not changed: attributes, buffers, mode, random state, hooks and weights are as they were.

    Args:
        model: the network.
        example: an input of the shape that the network is used with, on the model's device: a tensor, a tuple of
            positional arguments or a dict of keyword arguments. MACs are counted for its size.
        streams: how to treat channels that go through additions. "select": each layer that reads the stream selects the
            channels that it reads (the paper's channel selection layer). "coupled": all readers and writers drop a
            channel together, and no selection is needed.
        norms: whether layer norms, RMS norms, group norms of one group and means over channels may lose channels.
            "whole": what they read keeps its width. "compensated": they count channels that are gone as zeros and
            divide by their original number, which is exact. Streams lose channels in front of a norm only if they are
            coupled.
        attention: what attention loses. "heads": whole heads. "dims": dimensions inside of heads, as many of each head:
            those of queries, keys and values at one place in a head are one channel.
        check: at the end, carry out a trial plan and run it: units without which the network computes something else
            are frozen. Without it, trial plans are only followed on labels, and `prune` is the first to run the result.

    Raises:
        TraceError: the network cannot be followed, or does not run on the example.
    """
    for (name, known), given in zip(WAYS.items(), (streams, norms, attention), strict=True):
        check_choice(name, given, known, TraceError)
    check_network(model)
    check_example(example)
    with undisturbed(model), collected_later():
        example = tree_map(lambda v: v.clone() if isinstance(v, Tensor) and v.is_inference() else v, example)
        compensates = norms == "compensated"
        ways = {"compensates": compensates, "dims": attention == "dims"}

        def graph_of(network: nn.Module) -> ChannelGraph:
            analysis = discover(network, example, **ways)
            twin = twin_for(model, example, with_means=True) if compensates and analysis.averaged else None
            if twin is not None:
                with suppress(TraceError):
                    analysis = discover(twin, example, **ways)
            return prove(ChannelGraph(analysis, example, streams), by_running=check)

        twin = twin_for(model, example)
        if twin is not None:
            try:
                return graph_of(twin)
            except TraceError:  # such as code of nn.TransformerEncoder that looks at the values of a mask
                pass
        return graph_of(model)


def prune(graph: ChannelGraph, plan: Plan, *, check: bool = True) -> nn.Module:
    """A new model of the same class without the channels that the plan drops. `graph.model` is not changed.

    Where a layer reads a part of a stream, the layer (or the batch norm in front of it, if no other layer uses it)
    selects its channels. The names of parameters do not change.

    Args:
        graph: the traced network.
        plan: which channels each unit keeps.
        check: run the new model and the zeroed original on the example and on random inputs of its shape.

    Raises:
        PlanError: the plan is for another network or cannot be carried out, or the outputs differ by more than
            rounding.
    """
    if not isinstance(graph, ChannelGraph):
        raise PlanError(f"expected prune(graph, plan) with the graph of prunus.trace, got {type(graph).__name__}")
    keep = graph.keep_of(plan)
    follow_mode(graph.model)
    with undisturbed(graph.model):
        record, slices = replay_plan(graph, keep)
        try:
            model = carve(graph, record, slices)
        except (ValueError, RuntimeError, IndexError, TypeError) as error:
            raise PlanError(f"the plan cannot be carried out on the layers of the network: {error}") from error
        if check:
            verify(graph, keep, slices, model)
        follow_widths(graph.model, model, graph.example)
    remember_plan(model, source_of(graph.model), plan)
    return model
