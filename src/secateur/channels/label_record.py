"""What a pass of labels over a network writes down, and what a plan changes for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from secateur.channels.units import Indices


class Mismatch(Exception):
    """A replay that does not come out: the plan's widths do not fit what the network does at `node`."""

    def __init__(self, node: fx.Node, message: str) -> None:
        super().__init__(message)
        self.node = node


@dataclass
class Balance:
    """As many channels must be kept in each row of `blocks` as in any other."""

    blocks: Indices  # [blocks, positions] labels
    reader: str | None  # the grouped layer that asks for it, or None when the tensor itself is cut in equal parts
    reason: str


@dataclass(frozen=True)
class Selected:
    """What a module's selection takes of the `arriving` channels on axis `dim`."""

    index: Indices
    dim: int
    arriving: int

    @property
    def everything(self) -> bool:
        """Whether all that arrives is taken in its order, so that nothing needs to be selected."""
        return len(self.index) == self.arriving and bool((self.index == np.arange(self.arriving)).all())


@dataclass
class Record:
    """What one pass saw."""

    reads: dict[str, Indices] = field(default_factory=dict)  # reader -> labels on its input-channel axis
    writes: dict[str, Indices] = field(default_factory=dict)  # writer -> labels on its output-channel axis
    passes: dict[str, Indices] = field(default_factory=dict)  # batch norm, depthwise ... -> labels on its channels
    parameters: dict[str, Indices] = field(default_factory=dict)  # bare parameter -> labels on its one long axis
    unions: list[tuple[Indices, Indices, bool, fx.Node]] = field(default_factory=list)  # a, b, additive, where
    holds: list[tuple[Indices, str]] = field(default_factory=list)  # labels that must stay, and why
    balances: list[Balance] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)  # conv or linear layers without a rule that fits, and why
    values: dict[str, Any] = field(default_factory=dict)  # node name -> its value: labels or plain Python
    selected: dict[str, Selected] = field(default_factory=dict)  # module -> what its selection takes (replay)
    spread: dict[str, int] = field(default_factory=dict)  # node name -> operand broadcast over many channels
    axes: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # (node, "in" or "out") -> axes of channels
    failed: dict[str, str] = field(default_factory=dict)  # node name -> why its rule could not follow the channels


class Emitter:
    """Hands out labels. Discovering, each writer gets a fresh range, the same one every time it is asked."""

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
    """What a plan changes for a pass: who still emits what, and which labels selections let through.

    Decisions that must not depend on the pruned widths (a tensor pruned to one channel must not look like a gate of
    size 1) are those of the first pass.
    """

    emit: Mapping[str, Tensor]  # writer -> labels that live on, in the order of its filters
    wanted: Mapping[str, Indices]  # module that selects -> labels it hands on, in order
    first: Record  # what the discovering pass saw

    def __call__(self, writer: str, width: int) -> Tensor:
        return self.emit[writer]
