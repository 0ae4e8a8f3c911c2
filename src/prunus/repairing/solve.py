"""The repair `solve`: layers get new weights by least squares, front to back, so that they match the original's.

The last layer of a residual branch is solved for the sum behind it:

    stream = other + norm(layer(x))

The stream that enters a block of the pruned network differs from the original's. A branch that is solved for its own
output keeps that error. Solved for

    norm(layer(x)) = (other + branch) of the original - other of the pruned network

it corrects the error as far as it can. If the next branches were removed, it is solved for the sum behind them: what
they added is then part of what is missing.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from prunus.errors import RunError
from prunus.graph.branches import is_addition
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.graph.selection import selection_of
from prunus.graph.traced import Traced, only_user
from prunus.repairing.least_squares import CAREFUL, RIDGES, Fit, choose, relative_error
from prunus.repairing.lockstep import Chunk, Lockstep, NetworkPair, lockstep
from prunus.repairing.repair import Repair
from prunus.scoring.gram_sums import RegressionSums, SplitRows, held_apart
from prunus.scoring.passes import Images
from prunus.scoring.reader_inputs import FEW_IMAGES, POSITIONS, LayerInputs
from prunus.scoring.rows import (
    PLAIN,
    acts_plainly,
    exact,
    grid_of,
    inputs_at,
    outputs_at,
    rows_of_weight,
    spots_of,
    weight_of_rows,
)
from prunus.util.options import check, option
from prunus.util.progress import Progress, warn_once

logger = logging.getLogger(__name__)

ROWS_PER_WEIGHT = 2  # with fewer rows for each weight of a filter, a small ridge fits noise
MOST_ROWS_PER_WEIGHT = 256  # rows for each weight of a filter: more change hardly anything
FEWEST_IMAGES = 500  # images for a layer with few weights: rows of one image are alike
FLAT = 1e-6  # a norm with a smaller scale hides the layer's output, so the layer cannot correct the stream
OnLayer = Callable[[str, float, float], None]  # layer, error before, error after
Few = tuple[str, int, int]  # a layer with too few rows, the weights of each of its filters, and its rows
Change = tuple[Tensor, Tensor]  # a parameter or buffer, and its new value


@dataclass(frozen=True)
class SolveSettings:
    """Options of the repair `solve`."""

    layers: Literal["changed", "cut"] = option("changed", "Which layers to solve", choices=("changed", "cut"))
    ridge: float | None = option(None, "Weight of the penalty; None: chosen on held-out images", above=0)
    positions: int = option(POSITIONS, "Output positions of each image to fit on", least=1)
    seed: int = 0


def run(
    graph: ChannelGraph,
    plan: Plan,
    images: Images,
    *,
    layers: Literal["changed", "cut"] = "changed",
    ridge: float | None = None,
    positions: int = POSITIONS,
    memory: str | int | None = None,
    on_layer: OnLayer | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """Front to back, fit the weights of each layer to the output of the original network's layer.

    Everything in front of a layer is repaired before the layer is solved, so the layer is fitted to the inputs that it
    will really see.

    Args:
        layers: Which layers to solve. "changed": every layer after a cut, which also corrects errors that earlier
            layers could not. "cut": only layers that lost inputs; faster, and the other weights stay the original's.
        ridge: Weight of the penalty, relative to the Gram matrix's mean diagonal; chosen on held-out images if None.
        positions: Number of output positions of each image to fit on, drawn at random from `seed`.
        memory: How much the process may take, such as "4G"; half of the machine's by default. If the values of all
            images do not fit, they are kept in half precision and partly in a temporary file, or computed again.
        on_layer: Called for each solved layer with its name, its error before and its error after: the mean squared
            difference to the target, relative to each output's variance, as a mean over outputs.
    """
    settings = SolveSettings(layers, ridge, positions, seed)
    check(settings, RunError)
    with lockstep(graph, plan, images, memory) as networks:
        pair = networks.pair
        stops = [node for node in pair.nodes if _is_solvable(pair, node, layers)]
        order, shortcuts = order_with_shortcuts(pair, stops)
        stops.sort(key={node: i for i, node in enumerate(order)}.__getitem__)
        shortcuts, ahead = _reachable(order, stops, shortcuts)
        solver = _Solver(networks, settings, shortcuts, on_layer)
        reserve = max(map(solver.bytes_needed, stops), default=0)
        networks.start(order, stops, ahead=ahead, reserve=reserve, images=list(map(solver.images_needed, stops)))
        for number, node in enumerate(stops, 1):
            solver.solve(node)
            if progress is not None:
                progress(number, len(stops))
        used = f"The given ridge {ridge:g} is used." if ridge else "A larger ridge is used there."
        warn_of_few_images(networks.num_images, solver.few, used)
        return pair.models[1]


SOLVE = Repair(
    name="solve",
    help="Give layers new weights by least squares, so that they match the original network's outputs",
    run=run,
    tells_errors=True,
)


def too_few_rows(weights_per_filter: int, rows: int) -> bool:
    """Whether a small ridge would fit noise."""
    return rows < ROWS_PER_WEIGHT * weights_per_filter


def warn_of_few_images(num_images: int, few: Sequence[Few], consequence: str) -> None:
    """Log how many images the layers with too few rows need, if there are such layers."""
    if not few:
        return

    def needed(layer: Few) -> int:
        return math.ceil(ROWS_PER_WEIGHT * layer[1] * num_images / layer[2])

    worst = max(few, key=needed)
    each = worst[2] // num_images
    warn_once(
        logger,
        FEW_IMAGES,
        "%d images are too few for %d of the layers: %s has %d weights per filter, an image gives it %d %s, and it "
        "needs at least %d images. %s",
        *(num_images, len(few), *worst[:2], each, "row" if each == 1 else "rows", needed(worst), consequence),
    )


def norm_after(traced: Traced, model: nn.Module, node: fx.Node) -> Any:
    """The batch norm that takes a layer's output, if nothing else does and it has statistics to correct."""
    user = traced.batch_norm_after(node)
    norm: Any = None if user is None else model.get_submodule(str(user.target))
    usable = norm is not None and norm.running_mean is not None and selection_of(norm) is None
    return norm if usable else None


def reader_changes(seen: LayerInputs, norm: Any, columns: Tensor) -> list[Change]:
    """What a reader that keeps `columns` gets from `run(layers="cut")`; nothing if its equations have no solution."""
    whole = _start(seen.layer, norm)
    weight = whole.weight
    fitted, held_out = (
        part.narrowed(columns, weight, whole.constant) if part.rows else part for part in (seen.fitted, seen.held_out)
    )
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    fit = _chosen(fitted, held_out, replace(whole, weight=weight.gather(2, index)), None)
    if fit is None:
        return []
    return _changes(seen.layer, norm, torch.zeros_like(weight).scatter(2, index, fit.weight), fit.constant)


def _is_solvable(pair: NetworkPair, node: fx.Node, layers: str) -> bool:
    if not node.args or not pair.called_once(node):
        return False
    wanted = node in pair.changed if layers == "changed" else pair.lost_inputs(node)
    if layers == "changed" and not wanted and not pair.removed(node):
        found = _sum_after(pair, node)  # it makes up for a branch that is gone
        wanted = found is not None and (pair.removed(found[2]) or pair.gap_after(found[1]) is not None)
    return wanted and pair.kept_outputs(str(node.target)) is not None and isinstance(pair.layer(node), PLAIN)


def _start(layer: Any, norm: Any) -> Fit:
    """The layer before a fit; `norm` is the batch norm after it, if there is one."""
    weight = rows_of_weight(layer)
    bias = torch.zeros_like(weight[:, :, 0]) if layer.bias is None else exact(layer.bias).reshape(weight.shape[:2])
    return Fit(weight, bias, free=layer.bias is not None or norm is not None)


def _chosen(fitted: RegressionSums, held_out: RegressionSums, start: Fit, ridge: float | None) -> Fit | None:
    """The fit with the given ridge, or with the best one on held-out rows; None if the equations have no solution."""
    few = too_few_rows(start.weight.shape[2], fitted.rows + held_out.rows)
    fit = choose(fitted, held_out, start, (ridge,) if ridge is not None else CAREFUL if few else RIDGES)
    return fit if fit is not None and bool(torch.isfinite(fit.weight).all()) else None


def _changes(layer: Any, norm: Any, weight: Tensor, constant: Tensor) -> list[Change]:
    changes = [(layer.weight, weight_of_rows(layer, weight))]
    if layer.bias is not None:
        changes.append((layer.bias, constant.reshape(-1).to(layer.bias)))
    elif norm is not None:  # the norm subtracts its mean, so a constant in front of it lowers the mean
        changes.append((norm.running_mean, norm.running_mean - constant.reshape(-1).to(norm.running_mean)))
    return changes


class _Solver:
    """Solves one layer after the other, and notes those that have too few images."""

    def __init__(
        self, networks: Lockstep, settings: SolveSettings, shortcuts: dict[fx.Node, Shortcut], on_layer: OnLayer | None
    ) -> None:
        self._networks, self._pair, self._settings = networks, networks.pair, settings
        self._shortcuts, self._on_layer = shortcuts, on_layer
        self._places = {node: place for place, node in enumerate(networks.pair.nodes)}
        self.few: list[Few] = []

    def bytes_needed(self, node: fx.Node) -> int:
        """Memory of the equations of a layer: products of fitted and held-out rows, their sum and its factor."""
        groups, _, n = rows_of_weight(self._pair.layer(node)).shape
        return 6 * 8 * groups * n * min(n, self._networks.num_images * self._settings.positions)

    def images_needed(self, node: fx.Node) -> int:
        """Images that give a layer enough rows: it gains hardly anything from more."""
        layer, y = self._pair.layer(node), torch.empty(self._pair.traced.shapes[node.name], device="meta")
        n, grid = rows_of_weight(layer).shape[2], grid_of(layer, y)
        return max(FEWEST_IMAGES, math.ceil(MOST_ROWS_PER_WEIGHT * n / min(self._settings.positions, grid)))

    def solve(self, node: fx.Node) -> None:
        name, layer = str(node.target), self._pair.layer(node)
        norm = norm_after(self._pair.traced, self._pair.models[1], node) if layer.bias is None else None
        start = _start(layer, norm)
        rows = self._rows(node)
        if rows is None:
            kind = type(layer).__name__
            logger.warning("%s (%s) is not a linear map of its input; it is pruned but not solved", name, kind)
            return
        if too_few_rows(start.weight.shape[2], rows.rows):
            self.few.append((name, start.weight.shape[2], rows.rows))
        fit = _chosen(rows.fitted, rows.held_out, start, self._settings.ridge)
        if fit is None:
            logger.warning("%s: the equations have no solution; it is pruned but not solved", name)
            return
        if self._on_layer is not None:
            self._on_layer(name, relative_error(rows.whole, start), relative_error(rows.whole, fit))
        for tensor, value in _changes(layer, norm, fit.weight, fit.constant):
            tensor.copy_(value)
        logger.debug("%s: ridge %g", name, fit.ridge)

    def _rows(self, node: fx.Node) -> SplitRows | None:
        """The rows of all images; None if the layer is not linear."""
        seed, positions = self._settings.seed, self._settings.positions
        layer, kept = self._pair.layer(node), self._pair.kept_outputs(str(node.target))
        shortcut = self._shortcuts.get(node)
        rows: SplitRows | None = None
        for chunk in self._networks.chunks_at(node):
            gap = None if shortcut is None else shortcut.gap
            x, y = chunk.entering(node, 1), chunk.value(gap or node, 0)  # [N, I, ...], [N, O, ...]
            grid = grid_of(layer, y)
            if chunk.first == 0 and acts_plainly(layer, x):
                rows = SplitRows()
            if rows is None:
                continue  # but let all chunks run
            numbers = range(chunk.first, chunk.first + chunk.size)
            images, fitted = held_apart(numbers)
            where = spots_of(numbers, grid, positions, (seed, self._places[node]))[images]
            target = outputs_at(layer, y, where, images)[..., kept]  # [N, P, kept]
            if shortcut is not None and gap is not None:
                target = shortcut.for_gap(target, chunk, layer, where, images)
            elif shortcut is not None:
                missing = shortcut.missing(chunk, layer, where, images)
                target = target if missing is None else target + missing
            x = inputs_at(layer, x, where, images)  # [N, P, groups, inputs, taps]
            rows.add(fitted, x, target.reshape(*where.shape, x.shape[2], -1))
        return rows


@dataclass(frozen=True, eq=False)
class Shortcut:
    """The other operand of the addition after a layer, and the batch norm in between, if there is one."""

    other: fx.Node
    kept: Tensor  # the layer's outputs that are kept
    norm: Any
    removed: bool = False  # the other operand is a branch that is gone: zeros are in its place
    gap: fx.Node | None = None  # the last sum behind the addition that has lost its branch

    def missing(self, chunk: Chunk, layer: nn.Module, where: Tensor, images: Tensor) -> Tensor | None:
        """What must be added to the target at `where` [N, P] of `images`: [N, P, kept]; None if unknown."""
        pruned = self._other(chunk, layer, where, images)
        if pruned is None:
            return None
        error = outputs_at(layer, chunk.value(self.other, 0), where, images)[..., self.kept] - pruned
        scale, _ = self._between(error)
        return torch.where(scale.abs() > FLAT, error / scale, 0.0)

    def for_gap(self, target: Tensor, chunk: Chunk, layer: nn.Module, where: Tensor, images: Tensor) -> Tensor:
        """What the layer should return for the sum behind the gap to be `target` [N, P, kept]."""
        pruned = self._other(chunk, layer, where, images)
        if pruned is None:
            raise RunError("the operands of an addition have different numbers of channels")
        scale, shift = self._between(target)
        return torch.where(scale.abs() > FLAT, (target - pruned - shift) / scale, 0.0)

    def _other(self, chunk: Chunk, layer: Any, where: Tensor, images: Tensor) -> Tensor | None:
        """The other operand in the pruned network at `where`: [N, P, kept]; None if it has other channels."""
        if self.removed:
            return torch.zeros(len(self.kept)).to(layer.weight)
        value = chunk.value(self.other, 1)
        axis = value.dim() - 1 if isinstance(layer, nn.Linear) else 1
        return outputs_at(layer, value, where, images) if value.shape[axis] == len(self.kept) else None

    def _between(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and shift of each output between the layer and the stream."""
        scale = torch.ones(len(self.kept), device=like.device)
        if self.norm is None:
            return scale, torch.zeros_like(scale)
        gain = scale if self.norm.weight is None else self.norm.weight.detach()
        scale = gain / torch.sqrt(self.norm.running_var + self.norm.eps)
        offset = torch.zeros_like(scale) if self.norm.bias is None else self.norm.bias.detach()
        return scale, offset - scale * self.norm.running_mean


def _reachable(
    order: list[fx.Node], stops: list[fx.Node], shortcuts: dict[fx.Node, Shortcut]
) -> tuple[dict[fx.Node, Shortcut], dict[fx.Node, fx.Node]]:
    """Shortcuts with those gaps that the original network can reach before the next stop; and how far it goes."""
    place = {node: i for i, node in enumerate(order)}
    ahead, known = dict(zip(stops, stops, strict=True)), dict(shortcuts)
    for stop, after in itertools.zip_longest(stops, stops[1:]):
        shortcut = shortcuts.get(stop)
        if shortcut is None or shortcut.gap is None:
            continue
        if after is None or place[shortcut.gap] < place[after]:
            ahead[stop] = shortcut.gap
        else:
            known[stop] = replace(shortcut, gap=None)
    return known, ahead


def order_with_shortcuts(pair: NetworkPair, unsolved: list[fx.Node]) -> tuple[list[fx.Node], dict[fx.Node, Shortcut]]:
    """The calls in an order in which the other operand of an addition comes before the layer that is solved for the
    sum, where that is possible; and the shortcuts of these layers.
    """
    order: list[fx.Node] = []
    shortcuts: dict[fx.Node, Shortcut] = {}
    for node in pair.nodes:
        if node in order:
            continue
        shortcut = _shortcut(pair, node) if node in unsolved else None
        early = None if shortcut is None else _early(pair, node, shortcut.other, order, unsolved)
        if shortcut is not None and early is not None:
            order += early
            shortcuts[node] = shortcut
        order.append(node)
    return order, shortcuts


def _sum_after(pair: NetworkPair, node: fx.Node) -> tuple[Any, fx.Node, fx.Node] | None:
    """The batch norm right after `node` (None if there is none), the addition after it, and its other operand."""
    last, user, norm = node, only_user(node), None
    if user is not None and user.op == "call_module" and isinstance(pair.layer(user), nn.modules.batchnorm._BatchNorm):
        norm = pair.layer(user)
        last, user = user, only_user(user)
    if user is None or not is_addition(user) or (norm is not None and norm.running_var is None):
        return None
    other = next((n for n in user.args if n is not last), None)
    if not isinstance(other, fx.Node) or pair.traced.shapes[other.name] != pair.traced.shapes[node.name]:
        return None
    return norm, user, other


def _shortcut(pair: NetworkPair, node: fx.Node) -> Shortcut | None:
    """The addition right after `node`; a batch norm may come between."""
    kept, found = pair.kept_outputs(str(node.target)), _sum_after(pair, node)
    if kept is None or found is None:
        return None
    norm, user, other = found
    return Shortcut(other, kept, norm, pair.removed(other), pair.gap_after(user))


def _early(
    pair: NetworkPair, node: fx.Node, other: fx.Node, done: list[fx.Node], unsolved: list[fx.Node]
) -> list[fx.Node] | None:
    """The calls that `other` still needs, if they can be made before `node` and no call notices; otherwise None."""
    if other in done:
        return []
    pending: list[fx.Node] = []
    wanted = [other]
    while wanted:
        one = wanted.pop()
        if one in done or one in pending:
            continue
        if one is node or one in unsolved:
            return None
        pending.append(one)
        wanted += one.all_input_nodes
    order = {n: i for i, n in enumerate(pair.nodes)}
    after = {node}
    for between in pair.nodes[order[node] + 1 : order[other]]:
        if between in pending or between in done:
            continue
        # A call in between might write into the inputs of `other`. One that sees only the layer's output cannot.
        if not all(n in after or n.op == "get_attr" for n in between.all_input_nodes):
            return None
        after.add(between)
    return sorted(pending, key=order.__getitem__)
