"""The channel graph of a network: its units, what they cost, and what must stay as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from secateur.channels.cost import Cost, Layer, cost_of, find_layers
from secateur.channels.discovery import Discovery, discover
from secateur.channels.grouping import make_units
from secateur.channels.plan import Plan, checked_indices
from secateur.channels.rulebook import find_rule, is_pass_through
from secateur.channels.traced import Example
from secateur.channels.units import Indices, Unit
from secateur.errors import PlanError, TraceError

Streams = Literal["select", "coupled"]
Keep = Mapping[str, Sequence[int]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Liveness:
    """Which channels a plan leaves: with their writers, and in the eyes of each reader that decides alone."""

    alive: Mask  # [channels]
    read: Mapping[str, Mask]  # reader -> [channels] channels that it still reads; readers not listed read what is alive


class ChannelGraph:
    """Who reads and writes every channel of a network. Made by `secateur.trace`; changes nothing of the model.

    units: name -> Unit          what can be scored and pruned
    layers: name -> Layer        conv and linear layers and their cost
    frozen: name -> reason       layers whose channels cannot be removed, and why
    macs, params                 totals per image, as the paper counts them (weights of conv and linear layers)
    """

    def __init__(self, found: Discovery, example: Example, streams: Streams) -> None:
        self.model: nn.Module = found.traced.model
        self.example = example
        self.streams: Streams = streams
        self.found = found
        self.layers: dict[str, Layer] = find_layers(found.traced)
        self.units: dict[str, Unit]
        self.units, self.channels_of, self._held = make_units(found, streams)
        self._deciding_alone = {  # unit -> the one reader that decides for itself
            name: unit.readers[0].module
            for name, unit in self.units.items()
            if streams == "select" and unit.kind == "stream"
        }

    @property
    def macs(self) -> int:
        """Multiply-adds per image."""
        return sum(layer.macs for layer in self.layers.values())

    @property
    def params(self) -> int:
        """Weights of convolutions and linear layers."""
        return sum(layer.params for layer in self.layers.values())

    def cost(self, plan: Plan | Keep | None = None) -> Cost:
        """MACs and parameters under a plan, total and per layer, in closed form: no model is built."""
        live = self.liveness({} if plan is None else self.keep_of(plan))
        owners = self.selections_by_member
        layers = {}
        for name, layer in self.layers.items():
            reading = live.read.get(name, live.alive)
            if layer.depthwise:
                seen = live.read.get(owners.get(name, ""), live.alive)
                kept = _count(self.found.passes.get(name), seen, layer.inputs)
                inputs, outputs = kept, kept * (layer.outputs // layer.inputs)
            else:
                inputs = _count(self.found.reads.get(name), reading, layer.inputs)
                outputs = _count(self.found.writes.get(name), live.alive, layer.outputs)
            layers[name] = cost_of(layer, inputs, outputs)
        return Cost(sum(c.macs for c in layers.values()), sum(c.params for c in layers.values()), layers)

    def balance(self, keep: Keep) -> dict[str, tuple[int, ...]]:
        """Mend `keep` so that it respects granules: keeps all that it keeps, and adds the fewest channels."""
        mended = {}
        for name, kept in keep.items():
            if name not in self.units:
                raise PlanError(f"no unit is called {name!r}")
            unit = self.units[name]
            chosen = np.zeros(unit.width, dtype=bool)
            chosen[list(checked_indices(name, unit.width, kept))] = True
            most = max(1, int(np.bincount(unit.blocks[chosen], minlength=unit.granule).max()))
            for block in range(unit.granule):
                inside = np.flatnonzero(unit.blocks == block)
                missing = most - int(chosen[inside].sum())
                chosen[inside[~chosen[inside]][:missing]] = True
            mended[name] = tuple(np.flatnonzero(chosen).tolist())
        for writer in self._writers_left_empty(mended):
            name, channel = self._any_channel_of(writer)
            mended[name] = tuple(sorted({*mended[name], channel}))
        return mended

    def keep_of(self, plan: Plan | Keep) -> Keep:
        """The kept channels of a plan, once it is sure that the plan is for this network."""
        if not isinstance(plan, Plan):
            unknown = next((name for name in plan if name not in self.units), None)
            if unknown is not None:
                raise PlanError(f"no unit is called {unknown!r}")
            return {name: checked_indices(name, self.units[name].width, kept) for name, kept in plan.items()}
        if plan.fingerprint != self.fingerprint:
            raise PlanError(f"the plan is for another network: {self._difference(plan)}")
        return plan.keep

    # -- what a plan leaves

    def liveness(self, keep: Keep) -> Liveness:
        """A channel lives while someone reads it, or while it must stay."""
        shared = np.ones(self.found.channels, dtype=bool)
        own: dict[str, Mask] = {}
        for name, kept in keep.items():
            mask = (
                own.setdefault(self._deciding_alone[name], np.ones_like(shared))
                if (name in self._deciding_alone)
                else shared
            )
            numbers = self.channels_of[name]
            mask[numbers] = False
            mask[numbers[np.asarray(kept, dtype=np.int64)]] = True
        alive = np.zeros_like(shared)
        alive[list(self._held)] = True
        read = {reader: shared & mask for reader, mask in own.items()}
        for reader, vector in self.found.reads.items():
            numbers = vector[vector >= 0]
            alive[numbers[read.get(reader, shared)[numbers]]] = True
        return Liveness(alive, {reader: mask & alive for reader, mask in read.items()})

    def check(self, keep: Keep) -> None:
        """Raise PlanError unless the network can be cut so: every layer is left with a filter, every axis fits."""
        from secateur.channels.surgery import check_plan

        for writer in self._writers_left_empty(keep):
            name, channel = self._any_channel_of(writer)
            raise PlanError(
                f"{writer} would be left without outputs: nobody reads any of its channels. Keep one of them, "
                f"for instance channel {channel} of unit {name!r}; graph.balance(keep) does that."
            )
        check_plan(self, keep)

    def _writers_left_empty(self, keep: Keep) -> list[str]:
        alive = self.liveness(keep).alive
        return [w for w, vector in self.found.writes.items() if (vector >= 0).all() and not alive[vector].any()]

    def _any_channel_of(self, writer: str) -> tuple[str, int]:
        for name, unit in self.units.items():
            for w in unit.writers:
                if w.module == writer:
                    return name, int(w.channels[0])
        raise PlanError(f"{writer} writes no channel of any unit")

    # -- channel selection

    @cached_property
    def selections(self) -> dict[str, str]:
        """Reader that decides alone -> the module that carries its selection, as early as it can go."""
        chains = self._chains
        return {reader: chain[-1] for reader, chain in chains.items()}

    @cached_property
    def selections_by_member(self) -> dict[str, str]:
        """Module between a selection and its reader -> that reader."""
        return {member: reader for reader, chain in self._chains.items() for member in chain}

    @cached_property
    def _chains(self) -> dict[str, list[str]]:
        """Reader -> modules from it up to its selection, each of which works channel by channel for it alone."""
        alone = set(self._deciding_alone.values())
        traced = self.found.traced
        chains = {}
        for node in traced.graph.nodes:
            if node.op == "call_module" and str(node.target) in alone:
                chains[str(node.target)] = self._chain(node)
        return chains

    def _chain(self, reader: fx.Node) -> list[str]:
        traced, opaque = self.found.traced, self.found.opaque
        labels = _RuleLookup(traced, opaque)
        chain, last = [str(reader.target)], 0
        node = reader
        while True:
            inputs = node.all_input_nodes
            if len(inputs) != 1 or len(inputs[0].users) != 1:
                break
            node = inputs[0]
            if node.op not in ("call_module", "call_function", "call_method") or node.name in self.found.record.failed:
                break
            module = traced.module(node) if node.op == "call_module" else None
            if not is_pass_through(find_rule(labels, node), module):  # type: ignore[arg-type]
                break
            if module is not None and node.args and traced.calls[str(node.target)] == 1:
                chain.append(str(node.target))
                last = len(chain) - 1
        return chain[: last + 1]

    # -- identity

    @cached_property
    def frozen(self) -> dict[str, str]:
        """Layers none of whose output channels can be removed, and layers without a rule: name -> reason in words."""
        covered = {w.module for unit in self.units.values() for w in unit.writers}
        reasons = dict(self.found.record.opaque)
        for name, vector in self.found.writes.items():
            if name in covered:
                continue
            numbers = vector[vector >= 0]
            why = next((self._held[int(c)] for c in numbers if int(c) in self._held), None)
            reasons.setdefault(name, why or "its channels go through an addition whose readers cannot select")
        return {name: reasons[name] for name in reasons if name in self.layers or name in self.found.record.opaque}

    @property
    def prunable(self) -> list[str]:
        """Layers (depthwise ones aside) whose inputs or outputs some unit lets shrink."""
        names = {r.module for u in self.units.values() for r in u.readers}
        names |= {w.module for u in self.units.values() for w in u.writers}
        return [n for n, layer in self.layers.items() if n in names and not layer.depthwise]

    @cached_property
    def example_shapes(self) -> Any:
        """The example as JSON: shapes and types instead of tensors."""
        return tree_map(
            lambda v: (
                {"shape": list(v.shape), "dtype": str(v.dtype).removeprefix("torch.")} if isinstance(v, Tensor) else v
            ),
            self.example,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the network's structure: layers, widths, units. Weights do not enter."""
        layers = [[x.name, x.kind, x.inputs, x.outputs, x.groups, x.kernel] for x in self.layers.values()]
        units = [[u.name, u.width, u.granule, u.kind] for u in self.units.values()]
        text = json.dumps([self.streams, layers, units], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _difference(self, plan: Plan) -> str:
        if plan.streams != self.streams:
            return f"it was made with streams={plan.streams!r}, this graph with {self.streams!r}"
        for name in {**plan.widths, **self.units}:
            mine = self.units[name].width if name in self.units else None
            if mine is None:
                return f"it has a unit {name!r} that {type(self.model).__name__} does not have"
            if name not in plan.widths:
                return f"it lacks the unit {name!r} of {type(self.model).__name__}"
            if mine != plan.widths[name]:
                return f"unit {name!r} has {plan.widths[name]} channels in the plan and {mine} here"
        return "the units are the same, but layers or groups differ"

    def __repr__(self) -> str:
        return (
            f"ChannelGraph({type(self.model).__name__}: {len(self.units)} units, {len(self.layers)} layers, "
            f"{self.macs:,} MACs, {self.params:,} parameters, {len(self.frozen)} frozen, streams={self.streams!r})"
        )


@dataclass(frozen=True)
class _RuleLookup:
    """What `find_rule` needs of a pass."""

    traced: Any
    opaque: Mapping[str, str]


def _count(vector: Indices | None, mask: Mask, default: int) -> int:
    """Positions that stay: fixed ones, and those whose channel is in the mask."""
    if vector is None:
        return default
    return int((vector < 0).sum() + mask[vector[vector >= 0]].sum())


def trace(model: nn.Module, example: Example, streams: Streams = "select") -> ChannelGraph:
    """Follow every channel of `model` from who writes it to who reads it.

    example: an input of the shape that the network is used with, on the model's device: a tensor, a tuple of
        positional arguments or a dict of keyword arguments. MACs are counted for its size.
    streams: how channels that go through additions are treated. "select": each layer that reads the stream decides
        for itself which channels it reads (the paper's channel selection layer). "coupled": all readers and writers
        drop a channel together, and no selection is needed.

    The model is not changed: mode, random state, requires_grad, hooks and weights are as they were.
    """
    from secateur.channels.surgery import prove

    if streams not in ("select", "coupled"):
        raise TraceError(f'streams must be "select" or "coupled", got {streams!r}')
    if not isinstance(model, nn.Module):
        raise TraceError(f"expected a torch.nn.Module, got {type(model).__name__}")
    return prove(ChannelGraph(discover(model, example), example, streams))
