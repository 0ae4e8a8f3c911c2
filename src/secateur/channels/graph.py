"""The channel graph of a network: its units, their cost, and what must stay as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import nn

from secateur.base.options import check_choice
from secateur.base.preserve_state import generators_kept
from secateur.channels.arguments import check_example, check_network
from secateur.channels.cost import Cost, Layer, cost_under, find_layers
from secateur.channels.discovery.discover import Discovery, discover
from secateur.channels.discovery.grouping import make_units
from secateur.channels.identity import difference, example_shapes, fingerprint
from secateur.channels.kept_channels import balanced, checked_indices
from secateur.channels.liveness import Liveness, find_alive, writers_left_empty
from secateur.channels.plan import Plan
from secateur.channels.proof import prove
from secateur.channels.recording.tracing import trace_calls
from secateur.channels.replay import check_plan
from secateur.channels.rules.rulebook import is_leaf
from secateur.channels.selection_chains import SelectionChains, find_chains
from secateur.channels.traced import Example, Traced
from secateur.channels.units import Keep, Streams, Unit
from secateur.errors import PlanError, TraceError


class ChannelGraph:
    """The readers and writers of every channel of a network. Made by `secateur.trace`; does not change the model.

    units: name -> Unit          channels that can be scored and pruned
    layers: name -> Layer        conv and linear layers and their cost
    frozen: name -> reason       layers whose channels cannot be removed, and why
    macs, params                 totals per image, counted as in the paper (weights of conv and linear layers)
    """

    def __init__(self, found: Discovery, example: Example, streams: Streams) -> None:
        self.model: nn.Module = found.traced.model
        self.example = example
        self.streams: Streams = streams
        self.found = found
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
        return cost_under(self.layers, self.found, live, self.selections.readers)

    # -- plans

    def balance(self, keep: Keep) -> dict[str, tuple[int, ...]]:
        """The fewest channels to add to `keep` such that a plan can be made of it: the same number in each block of a
        unit, and at least one output for every layer."""
        self._check_names(keep)
        added = {name: balanced(self.units[name], kept) for name, kept in keep.items()}
        for writer in writers_left_empty(self.found, self.liveness(added)):
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
        for writer in writers_left_empty(self.found, self.liveness(keep)):
            name, channel = self._any_channel_of(writer)
            raise PlanError(
                f"{writer} would have no outputs left: no layer reads any of its channels. Keep one of them, "
                f"for example channel {channel} of unit {name!r}; graph.balance(keep) does that."
            )
        check_plan(self, keep)

    def liveness(self, keep: Keep) -> Liveness:
        """The channels that are left if each unit in `keep` keeps only these channels."""
        return find_alive(self.found, self.grouped, keep)

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
        return find_chains(self.found, set(self.grouped.selecting.values()))

    @cached_property
    def frozen(self) -> dict[str, str]:
        """Layers whose outputs must all be kept, and layers without a rule: name -> reason in words."""
        covered = {w.module for unit in self.units.values() for w in unit.writers}
        reasons = dict(self.found.record.opaque)
        held = self.grouped.held
        for name, vector in self.found.writes.items():
            if name not in covered:
                why = next((held[c] for c in vector.tolist() if c in held), None)
                reasons.setdefault(name, why or "its channels go through an addition whose readers cannot select")
        reasons |= {name: why for name, why in self.found.held_readers.items() if name not in covered}
        return {name: reasons[name] for name in reasons if name in self.layers or name in self.found.record.opaque}

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
        traced = self.found.traced
        if not traced.guards:
            return traced
        return trace_calls(self.model, inputs, is_leaf)

    def holding(self, reasons: Mapping[str, str]) -> ChannelGraph:
        """The graph of the same network without these units (name -> why their channels must be kept)."""
        held, readers = dict(self.found.held), dict(self.found.held_readers)
        for name, reason in reasons.items():
            reader = self.grouped.selecting.get(name)
            if reader is not None:
                readers.setdefault(reader, reason)
            for channel in self.grouped.channels[name].tolist() if reader is None else ():
                held.setdefault(channel, reason)
        return ChannelGraph(replace(self.found, held=held, held_readers=readers), self.example, self.streams)


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
