"""The layout of a drawing of the network: one row per layer, with lanes for the values that are still needed.

A row begins with the lanes of the values that are alive before its node, and ends with those that are alive after it.
So rows can be drawn one by one, and folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secateur.report.newer_files import Node
from secateur.running.network_shape import JOIN, LAYER

Lanes = tuple[int | None, ...]  # lane -> place of the node whose value is in it; None if it is free


@dataclass(frozen=True)
class Row:
    """A node and the lanes around it."""

    place: int
    node: Node
    lane: int  # of the node
    above: Lanes
    below: Lanes

    @property
    def entering(self) -> tuple[int, ...]:
        """Lanes of the values that the node reads."""
        return tuple(lane for lane, value in enumerate(self.above) if value in self.node.sources)


def lay_out(nodes: Sequence[Node]) -> list[Row]:
    """A node takes the first lane that its sources leave, or else a free one."""
    uses = [0] * len(nodes)
    for node in nodes:
        for source in node.sources:
            uses[source] += 1
    rows = []
    lanes: list[int | None] = []
    for place, node in enumerate(nodes):
        above = tuple(lanes)
        for source in node.sources:
            uses[source] -= 1
        for lane, value in enumerate(lanes):
            if value is not None and not uses[value]:
                lanes[lane] = None
        left = [lane for lane, value in enumerate(above) if value in node.sources and lanes[lane] is None]
        free = [*left, *(lane for lane, value in enumerate(lanes) if value is None), len(lanes)]
        lane = free[0]
        if uses[place]:
            lanes[lane : lane + 1] = [place]
        while lanes and lanes[-1] is None:
            lanes.pop()
        rows.append(Row(place, node, lane, above, tuple(lanes)))
    return rows


def streams(nodes: Sequence[Node]) -> frozenset[int]:
    """Nodes whose values travel on past other layers to an addition: the residual streams."""
    joins = [node for node in nodes if node.kind == JOIN and node.name == "add"]
    readers = [[other for other in nodes if place in other.sources] for place in range(len(nodes))]
    return frozenset(
        place
        for place, node in enumerate(nodes)
        if node in joins or (len(readers[place]) > 1 and any(reader in joins for reader in readers[place]))
    )


def block_of(layer: str) -> str | None:
    """layer1.0.conv1 -> layer1.0; features.denseblock1.denselayer1.conv1 -> features.denseblock1.denselayer1.

    The name up to its first part that is a number, else up to the last one that ends in a digit; the layer's own part
    does not count. None if there is none.
    """
    parts = layer.split(".")
    numbers = [place for place, part in enumerate(parts[:-1]) if part.isdigit()]
    digits = [place for place, part in enumerate(parts[:-1]) if part[-1:].isdigit()]
    if not digits:
        return None
    return ".".join(parts[: (numbers[0] if numbers else digits[-1]) + 1])


def blocks(rows: Sequence[Row]) -> list[tuple[str | None, list[Row]]]:
    """Rows in a series of one block each; what joins values belongs to the layer before it."""
    found: list[tuple[str | None, list[Row]]] = []
    for row in rows:
        name = block_of(row.node.name) if row.node.kind == LAYER else None
        if row.node.kind == JOIN and found:
            name = found[-1][0]
        if found and name is not None and found[-1][0] == name:
            found[-1][1].append(row)
        else:
            found.append((name, [row]))
    return found
