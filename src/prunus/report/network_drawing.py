"""The network as a drawing: layers from the input down to the output, streams, widths and cost before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from prunus.report import svg
from prunus.report.html import key, paragraph, section
from prunus.report.read import FinishedRun, LayerCost, Node
from prunus.report.text import big, change, milliseconds
from prunus.run.report_files import JOIN, LAYER

# The layout of a drawing of the network: one row per layer, with lanes for the values that are still needed.

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


FOLD_FROM = 40  # rows; a longer network is folded by block
ROW = 20.0  # pixels
LANE, MOST_RAILS = 2.6, 16.0  # per cent of the width: a lane, all lanes
BARS, END, COST, COST_END = 42.0, 64.0, 84.0, 100.0  # per cent of the width: bars of channels, bars of cost
Pair = tuple[float, float]


@dataclass(frozen=True)
class _Drawing:
    """What all rows share."""

    layers: Mapping[str, LayerCost]
    costs: Mapping[str, Pair]  # layer -> seconds or MACs, before and after
    shown: Callable[[float], str]  # a cost in words
    streams: frozenset[int]
    step: float  # per cent of the width of a lane
    rails: float  # per cent of the width where the lanes end
    widest: float  # channels of the longest bar
    dearest: float  # cost of the longest bar

    def x(self, lane: int) -> float:
        """The position of a lane."""
        return self.step * (lane + 0.5)

    def kind(self, value: int | None) -> str:
        """The style of a lane."""
        return "stream" if value in self.streams else "rail"


def network(run: FinishedRun) -> str:
    """The section; "" for runs of earlier versions, which did not store the shape of the network."""
    if not run.shape:
        return ""
    rows = lay_out(run.shape)
    drawing = _drawing(run, rows)
    series = blocks(rows)
    is_folded = len(rows) > FOLD_FROM and any(len(each) > 1 for _, each in series)
    cost = "time" if run.time is not None else "MACs"
    words = (
        f"From the input down to the output. A bar on the left is the width of a layer, a bar on the right its {cost}. "
        "Lines show which layer reads which; where lines meet, values are added or joined."
    )
    if is_folded:
        words += (
            " Layers are folded by block: click a block to open it. The width of a block is that of all its layers."
        )
    keys = [("blue", "channels after"), ("green", f"{cost} after"), ("pale", "before")]
    keys += [("orange", "residual stream")] if drawing.streams else []
    shown = _series(drawing, series) if is_folded else [f"<figure>{_rows(drawing, rows, 'Network')}</figure>"]
    return section("The network", paragraph(words), key(*keys), '<div class="network">', *shown, "</div>")


def _drawing(run: FinishedRun, rows: Sequence[Row]) -> _Drawing:
    most = max(len(row.below) for row in rows)
    step = min(LANE, MOST_RAILS / max(1, most))
    costs: dict[str, Pair] = {name: (float(c.macs[0]), float(c.macs[1])) for name, c in run.layers.items()}
    if run.time is not None:
        costs = {name: run.time.layers[name] for name in run.layers if name in run.time.layers}
    names = milliseconds if run.time is not None else lambda macs: f"{big(macs)} MACs"
    widest = max((float(layer.outputs[0]) for layer in run.layers.values()), default=1.0)
    dearest = max((before for before, _ in costs.values()), default=1.0)
    found = streams([row.node for row in rows])
    return _Drawing(run.layers, costs, names, found, step, step * max(1, most), widest, dearest)


def _series(drawing: _Drawing, series: Sequence[tuple[str | None, list[Row]]]) -> list[str]:
    """Blocks as folds, and the layers between them."""
    parts = []
    total = [_of_layers(drawing, rows) for _, rows in series]
    outer = replace(drawing, widest=max(w[0] for w, _ in total), dearest=max(c[0] for _, c in total))
    for (name, rows), (width, cost) in zip(series, total, strict=True):
        if name is None or len(rows) == 1:
            parts.append(f"<figure>{_rows(outer, rows, rows[0].node.name)}</figure>")
            continue
        label = f"Block {name}: {len(rows)} rows, {_pair(width)} channels"
        body = [*_lanes_of_block(outer, rows), *_bars(outer, 0, width, cost, label)]
        body.append(svg.name(14, f"▸ {name}", "strong" if width[0] != width[1] else "", outer.rails + 2))
        head = svg.chart(body, ROW, f"{label}, and what it costs.", "block")
        parts.append(f"<details><summary>{head}</summary>{_rows(drawing, rows, f'Block {name}')}</details>")
    return parts


def _of_layers(drawing: _Drawing, rows: Sequence[Row]) -> tuple[Pair, Pair]:
    """Channels and cost, before and after: sums over the layers of some rows."""
    names = [row.node.name for row in rows if row.node.kind == LAYER]
    widths = [drawing.layers[name].outputs for name in names if name in drawing.layers]
    costs = [drawing.costs[name] for name in names if name in drawing.costs]
    width = (float(sum(pair[0] for pair in widths)), float(sum(pair[1] for pair in widths)))
    return width, (sum(pair[0] for pair in costs), sum(pair[1] for pair in costs))


def _rows(drawing: _Drawing, rows: Sequence[Row], what: str) -> str:
    """A chart with one row per node."""
    body = []
    for place, row in enumerate(rows):
        top, name = ROW * place, row.node.name
        layer = drawing.layers.get(name) if row.node.kind == LAYER else None
        body += _lanes(drawing, row, top)
        if layer is None:
            kind = "joint" if row.node.kind == JOIN else "end"
            body.append(svg.dot(drawing.x(row.lane), top + ROW / 2, kind, f"{row.node.kind}: {name}", 4))
            said = name if row.node.kind == JOIN else row.node.kind
            body.append(svg.name(top + 14, said, "small", drawing.rails + 2))
            continue
        lost = layer.outputs[0] != layer.outputs[1] or layer.inputs[0] != layer.inputs[1]
        title = f"{name}: {_pair(layer.inputs)} inputs, {_pair(layer.outputs)} outputs"
        body.append(svg.dot(drawing.x(row.lane), top + ROW / 2, "kept" if lost else "other", title, 5))
        body.append(svg.name(top + 14, name, "strong" if lost else "", drawing.rails + 2))
        width = (float(layer.outputs[0]), float(layer.outputs[1]))
        body += _bars(drawing, top, width, drawing.costs.get(name, (0.0, 0.0)), title)
    layers = [row.node.name for row in rows if row.node.kind == LAYER]
    label = f"{what}: {len(layers)} layers with their widths before and after, and how they are connected."
    return svg.chart(body, ROW * len(rows), label, "net")


def _bars(drawing: _Drawing, top: float, width: Pair, cost: Pair, title: str) -> list[str]:
    """Channels on the left with their number, cost on the right."""
    channels, costs = svg.Scale(0, drawing.widest, BARS, END), svg.Scale(0, drawing.dearest, COST, COST_END)
    spent = f"{title}; {drawing.shown(cost[0])} before, {drawing.shown(cost[1])} after ({change(*cost)})"
    body = []
    for scale, pair, kind in ((channels, width, "kept"), (costs, cost, "test")):
        for value, style in ((pair[0], "lost"), (pair[1], kind)):
            body.append(svg.rect(scale.start, top + 4, scale(max(0.0, value)) - scale.start, 12, style, spent))
    body.append(svg.text(channels(width[0]) + 0.7, top + 14, _pair(width), "small"))
    return body


def _pair(pair: Pair | tuple[int, int]) -> str:
    return f"{pair[0]:.0f}" if pair[0] == pair[1] else f"{pair[0]:.0f} → {pair[1]:.0f}"


# -- lines


def _lanes(drawing: _Drawing, row: Row, top: float) -> list[str]:
    """Lines from the top of a row to its node, past it, and on to the bottom."""
    middle, x = top + ROW / 2, drawing.x(row.lane)
    body = _passing(drawing, row.above, row.below, top)
    for lane in row.entering:
        body.append(svg.line(drawing.x(lane), top, x, middle, drawing.kind(row.above[lane])))
    if row.lane < len(row.below) and row.below[row.lane] == row.place:
        body.append(svg.line(x, middle, x, top + ROW, drawing.kind(row.place)))
    return body


def _passing(drawing: _Drawing, above: Lanes, below: Lanes, top: float) -> list[str]:
    """Values that go on."""
    pairs = enumerate(zip(above, below, strict=False))
    kept = [(lane, value) for lane, (value, after) in pairs if value is not None and value == after]
    return [svg.line(drawing.x(lane), top, drawing.x(lane), top + ROW, drawing.kind(value)) for lane, value in kept]


def _lanes_of_block(drawing: _Drawing, rows: Sequence[Row]) -> list[str]:
    """A folded block: what enters meets in a box, and what leaves begins there."""
    above, below, middle = rows[0].above, rows[-1].below, ROW / 2
    body = _passing(drawing, above, below, 0)
    x = drawing.x(rows[-1].lane)
    inside = {row.place for row in rows}
    read = {source for row in rows for source in row.node.sources}
    for lane, value in enumerate(above):
        if value in read:
            body.append(svg.line(drawing.x(lane), 0, x, middle, drawing.kind(value)))
    for lane, value in enumerate(below):
        if value in inside:
            body.append(svg.line(x, middle, drawing.x(lane), ROW, drawing.kind(value)))
    body.append(svg.dot(x, middle, "box", escape(f"{len(rows)} rows"), 6))
    return body
