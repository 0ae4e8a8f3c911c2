"""What a label pass over a network records, and how a plan changes the pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from secateur.channels.units import Indices


class Mismatch(Exception):
    """A replay that fails: the widths of the plan do not fit what the network does at `node`."""

    def __init__(self, node: fx.Node, message: str) -> None:
        super().__init__(message)
        self.node = node

    @property
    def where(self) -> str:
        """The call at which it fails, in words."""
        return getattr(self.node.target, "__name__", str(self.node.target))


@dataclass
class Balance:
    """The same number of channels must be kept in each row of `blocks`."""

    blocks: Indices  # [blocks, positions] labels
    reader: str | None  # the grouped layer that needs it, or None if the tensor itself is split into equal parts
    reason: str


@dataclass(frozen=True)
class Selected:
    """The channels that a module selects among the `arriving` ones on axis `dim`."""

    index: Indices
    dim: int
    arriving: int
    filled: bool = False  # with zeros for those that do not arrive

    @property
    def everything(self) -> bool:
        """Whether all arriving channels are taken in order, so that no selection is needed."""
        return len(self.index) == self.arriving and bool((self.index == np.arange(self.arriving)).all())


@dataclass
class Record:
    """What one pass found."""

    reads: dict[str, Indices] = field(default_factory=dict)  # reader -> labels on its input-channel axis
    writes: dict[str, Indices] = field(default_factory=dict)  # writer -> labels on its output-channel axis
    passes: dict[str, Indices] = field(default_factory=dict)  # batch norm, depthwise ... -> labels on its channels
    parameters: dict[str, Indices] = field(default_factory=dict)  # bare parameter -> labels on its one long axis
    unions: list[tuple[Indices, Indices, bool, fx.Node]] = field(default_factory=list)  # a, b, additive, where
    holds: list[tuple[Indices, str]] = field(default_factory=list)  # labels that must be kept, and why
    balances: list[Balance] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)  # called modules that no rule fits -> reason
    values: dict[str, Any] = field(default_factory=dict)  # node name -> its value: labels or plain Python
    selected: dict[str, Selected] = field(default_factory=dict)  # module -> what it selects (replay)
    spread: dict[tuple[str, int], int] = field(default_factory=dict)  # node, pair -> operand broadcast over channels
    axes: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # (node, "in" or "out") -> axes of channels
    failed: dict[str, str] = field(default_factory=dict)  # node name -> why its rule could not follow the channels


class Emitter:
    """Gives out labels when channels are discovered: each writer gets a new range, always the same one."""

    def __init__(self) -> None:
        self.count = 0
        self.ranges: dict[str, Tensor] = {}
        self.bare: set[str] = set()  # names of bare parameters among the writers

    def __call__(self, writer: str, width: int) -> Tensor:
        if writer not in self.ranges:
            self.ranges[writer] = torch.arange(self.count, self.count + width)
            self.count += width
        return self.ranges[writer]


@dataclass
class Replay:
    """How a plan changes a pass: which labels each writer still emits, and which labels pass each selection.

    Decisions that must not depend on the pruned widths are taken from the first pass: a tensor pruned to one channel
    must not look like a gate of size 1.
    """

    emit: Mapping[str, Tensor]  # writer -> labels that are still alive, in the order of its filters
    wanted: Mapping[str, Indices]  # module that selects -> labels it passes on, in order
    first: Record  # of the pass that discovered the channels

    def __call__(self, writer: str, width: int) -> Tensor:
        return self.emit[writer]
