"""The network as a drawing: layers from the input down to the output, streams, widths and cost before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prunus.report.read import FinishedRun
from prunus.run.context import JOIN, LAYER, Node
from prunus.util.text import big_number, milliseconds, relative_change

FOLD_FROM = 40  # rows; a longer network is folded by block
ROW = 20  # pixels
LANE, MOST_RAILS = 17.0, 120.0  # pixels: a lane, all lanes

Lanes = tuple[int | None, ...]  # lane -> place of the node whose value is in it; None if it is free
Line = tuple[float, float, float, float, str]  # x1, y1, x2, y2, kind
Sides = tuple[float, float]  # before, after


# -- the layout: one row per layer, with lanes for the values that are still needed


@dataclass(frozen=True)
class Row:
    """A node and the lanes around it."""

    place: int
    node: Node
    lane: int  # of the node
    above: Lanes
    below: Lanes


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
        lane = [*left, *(lane for lane, value in enumerate(lanes) if value is None), len(lanes)][0]
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
    series: list[tuple[str | None, list[Row]]] = []
    for row in rows:
        name = block_of(row.node.name) if row.node.kind == LAYER else None
        if row.node.kind == JOIN and series:
            name = series[-1][0]
        if series and name is not None and series[-1][0] == name:
            series[-1][1].append(row)
        else:
            series.append((name, [row]))
    return series


# -- the drawing, for the template


@dataclass(frozen=True)
class DrawnRow:
    """A row of the drawing: a node, or a folded block."""

    lines: list[Line]
    dot: tuple[float, str]  # x, kind
    name: str
    style: str  # of the name: strong, small or plain
    title: str
    width: Sides | None = None  # channels; None for what is not a layer
    cost: Sides = (0.0, 0.0)
    inside: tuple[DrawnRow, ...] = ()  # of a block


class NetworkDrawing:
    """The rows of a drawing, and what they share: the width of the lanes, and the longest bars of channels and of costs
    (of a row, and of a row inside a block).
    """

    def __init__(self, run: FinishedRun) -> None:
        rows, time, self._layers = lay_out(run.nodes), run.summary.time, run.summary.layers
        self.streams = streams(run.nodes)
        self.what = "MACs" if time is None else "time"
        self._costs: Mapping[str, Sides] = {name: layer.macs for name, layer in self._layers.items()}
        if time is not None:
            self._costs = {name: time.layers[name] for name in self._layers if name in time.layers}
        lanes = max((len(row.below) for row in rows), default=0) or 1
        self._step = min(LANE, MOST_RAILS / lanes)
        self.rails = self._step * lanes
        series = blocks(rows)
        self.folded = len(rows) > FOLD_FROM and any(len(each) > 1 for _, each in series)
        if self.folded:
            self.rows = [self._row(each[0]) if len(each) == 1 else self._block(str(n), each) for n, each in series]
        else:
            self.rows = [self._row(row) for row in rows]
        inner = [row for each in self.rows for row in each.inside] or self.rows
        self.widest = [max((r.width[0] for r in rows if r.width), default=1.0) or 1.0 for rows in (self.rows, inner)]
        self.dearest = [max((row.cost[0] for row in rows), default=1.0) or 1.0 for rows in (self.rows, inner)]

    def _x(self, lane: int) -> float:
        return round(self._step * (lane + 0.5), 1)

    def _kind(self, value: int | None) -> str:
        return "stream" if value in self.streams else "rail"

    def _row(self, row: Row) -> DrawnRow:
        node, x, lines = row.node, self._x(row.lane), self._lines([row])
        layer = self._layers.get(node.name) if node.kind == LAYER else None
        if layer is None:
            joins = node.kind == JOIN
            name = node.name if joins else node.kind
            return DrawnRow(lines, (x, "joint" if joins else "end"), name, "small", f"{node.kind}: {node.name}")
        narrowed = layer.outputs[0] != layer.outputs[1] or layer.inputs[0] != layer.inputs[1]
        cost = self._costs.get(node.name, (0.0, 0.0))
        title = f"{node.name}: {sides(layer.inputs)} inputs, {sides(layer.outputs)} outputs"
        title = title if layer.outputs[1] else f"{node.name}: removed with its residual branch"
        dot, style = ("kept", "strong") if narrowed else ("other", "plain")
        return DrawnRow(lines, (x, dot), node.name, style, self._with_cost(title, cost), layer.outputs, cost)

    def _block(self, name: str, rows: Sequence[Row]) -> DrawnRow:
        """A folded block: what enters meets in a dot, and what leaves begins there. Width and cost are sums."""
        inside = tuple(self._row(row) for row in rows)
        widths = [row.width for row in inside if row.width is not None]
        width = (sum(pair[0] for pair in widths), sum(pair[1] for pair in widths))
        cost = (sum(row.cost[0] for row in inside), sum(row.cost[1] for row in inside))
        title = self._with_cost(f"Block {name}: {len(rows)} rows, {sides(width)} channels", cost)
        style = "strong" if width[0] != width[1] else "plain"
        dot = (self._x(rows[-1].lane), "box")
        return DrawnRow(self._lines(rows), dot, name, style, title, width, cost, inside)

    def _lines(self, rows: Sequence[Row]) -> list[Line]:
        """Lines past a node or block, from the top to its dot, and from there to the bottom."""
        above, below, x = rows[0].above, rows[-1].below, self._x(rows[-1].lane)
        places, read = {row.place for row in rows}, {source for row in rows for source in row.node.sources}
        lanes = enumerate(zip(above, below, strict=False))
        on = [(self._x(lane), v) for lane, (v, after) in lanes if v is not None and v == after]
        lines: list[Line] = [(at, 0, at, ROW, self._kind(v)) for at, v in on]
        lines += [(self._x(lane), 0, x, ROW / 2, self._kind(v)) for lane, v in enumerate(above) if v in read]
        lines += [(x, ROW / 2, self._x(lane), ROW, self._kind(v)) for lane, v in enumerate(below) if v in places]
        return lines

    def _with_cost(self, title: str, cost: Sides) -> str:
        was, now = (f"{big_number(c)} MACs" if self.what == "MACs" else milliseconds(c) for c in cost)
        return f"{title}; {was} before, {now} after ({relative_change(*cost)})"


def sides(pair: Sides) -> str:
    """16 to 10 as 16 → 10; one number if nothing changed."""
    return f"{pair[0]:.0f}" if pair[0] == pair[1] else f"{pair[0]:.0f} → {pair[1]:.0f}"
