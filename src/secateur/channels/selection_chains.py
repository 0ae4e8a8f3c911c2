"""Where channel selections go: as early as possible in front of a reader.

A reader that selects channels of a stream often has layers in front of it that work channel by channel for it alone,
such as the batch norm of a pre-activation block. Then the selection goes in front of these layers, so that they shrink
too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from secateur.channels.discovery.discover import Discovery
from secateur.channels.rules.rulebook import is_pass_through


@dataclass(frozen=True)
class SelectionChains:
    """Reader -> the modules from the reader back to the one that carries its selection."""

    chains: dict[str, list[str]]

    @cached_property
    def carriers(self) -> dict[str, str]:
        """Reader -> the module that carries its selection."""
        return {reader: chain[-1] for reader, chain in self.chains.items()}

    @cached_property
    def readers(self) -> dict[str, str]:
        """Module between a selection and its reader, both included -> the reader."""
        return {member: reader for reader, chain in self.chains.items() for member in chain}


def find_chains(found: Discovery, readers: Collection[str]) -> SelectionChains:
    """The chains in front of these readers."""
    calls = (n for n in found.traced.graph.nodes if n.op == "call_module" and str(n.target) in readers)
    return SelectionChains({str(node.target): _chain(found, node) for node in calls})


def _chain(found: Discovery, reader: fx.Node) -> list[str]:
    traced = found.traced
    chain = [str(reader.target)]
    if traced.calls[chain[0]] > 1:  # each call has other layers in front of it
        return chain
    node = reader
    while len(inputs := node.all_input_nodes) == 1 and len(inputs[0].users) == 1:
        node = inputs[0]
        if not node.op.startswith("call") or node.name in found.record.failed:
            break
        module = traced.module(node) if node.op == "call_module" else None
        if not is_pass_through(found.find_rule(node), module):
            break
        if module is not None and traced.calls[str(node.target)] > 1 and str(node.target) in found.passes:
            break
        if module is not None and node.args and traced.calls[str(node.target)] == 1:
            chain.append(str(node.target))
    return chain
