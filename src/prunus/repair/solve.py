"""Layers solved front to back: the weights of each are fitted to the output of the original network's layer."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn

from prunus.graph.selection import selection_of
from prunus.graph.traced import Traced
from prunus.repair.least_squares import CAREFUL, RIDGES, Fit, Start, choose, relative_error, unchanged
from prunus.repair.lockstep import NetworkPair, Route, Walk
from prunus.repair.shortcuts import Shortcut, order_with_shortcuts
from prunus.score.gram_sums import GramSums, KeptRows, Parts, add_apart, held_apart, together
from prunus.score.reader_inputs import POSITIONS
from prunus.score.rows import (
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
from prunus.util.options import option
from prunus.util.progress import Progress

# Layers for which there are too few images to fit their weights.

log = logging.getLogger(__name__)

ROWS_PER_WEIGHT = 2  # with fewer rows for each weight of a filter, a small ridge fits noise


@dataclass(frozen=True)
class TooFewImages:
    """A layer, and the number of images that it needs."""

    layer: str
    weights_per_filter: int
    rows_per_image: int
    num_images: int


def too_few_images(layer: str, weights_per_filter: int, rows: int, num_images: int) -> TooFewImages | None:
    """What the layer needs if `rows` rows of `num_images` images are too few; None if they are enough."""
    if rows >= ROWS_PER_WEIGHT * weights_per_filter:
        return None
    needed = math.ceil(ROWS_PER_WEIGHT * weights_per_filter * num_images / rows)
    return TooFewImages(layer, weights_per_filter, rows // num_images, needed)


def warn_of_few_images(num_images: int, few: Sequence[TooFewImages], consequence: str) -> None:
    """Log how many images are needed."""
    if not few:
        return
    worst = max(few, key=lambda one: one.num_images)
    log.warning(
        "%d images are too few for %d of the layers: %s has %d weights per filter, an image gives it %d %s, and it "
        "needs at least %d images. %s",
        num_images,
        len(few),
        worst.layer,
        worst.weights_per_filter,
        worst.rows_per_image,
        "row" if worst.rows_per_image == 1 else "rows",
        worst.num_images,
        consequence,
    )


ENOUGH = 256  # rows for each weight of a filter: more change hardly anything
LEAST = 500  # images for a layer with few weights: rows of one image are alike
OnLayer = Callable[[str, float, float], None]  # layer, error before, error after


@dataclass(frozen=True)
class SolveSettings:
    """Options of the repair `solve`."""

    layers: Literal["changed", "cut"] = option("changed", "Which layers to solve", choices=("changed", "cut"))
    ridge: float | None = option(None, "Weight of the penalty; None: chosen on held-out images", above=0)
    positions: int = option(POSITIONS, "Output positions of each image to fit on", least=1)
    seed: int = 0


def solve_layers(
    walk: Walk, settings: SolveSettings, progress: Progress | None, on_layer: OnLayer | None = None
) -> None:
    """Run both networks in lockstep, and give layers of the pruned one new weights before they run."""
    todo = [node for node in walk.pair.nodes if _is_solvable(walk.pair, node, settings.layers == "changed")]
    order, shortcuts = order_with_shortcuts(walk.pair, todo)
    todo.sort(key={node: i for i, node in enumerate(order)}.__getitem__)
    solver = _Solver(walk, settings, shortcuts, on_layer)
    needed = [solver.images_needed(node) for node in todo]
    walk.take(Route(order, todo, True, max(map(solver.bytes_needed, todo), default=0), needed))
    for number, node in enumerate(todo, 1):
        solver.solve(node)
        if progress is not None:
            progress(number, len(todo))
    kept = f"The given ridge {settings.ridge:g} is used." if settings.ridge else "A larger ridge is used there."
    warn_of_few_images(walk.num_images, solver.few, kept)


def start_of(layer: Any, norm: Any) -> Start:
    """The layer before a fit; `norm` is the batch norm after it, if there is one."""
    weight = rows_of_weight(layer)
    bias = torch.zeros_like(weight[:, :, 0]) if layer.bias is None else exact(layer.bias).reshape(weight.shape[:2])
    return Start(weight, bias, layer.bias is not None or norm is not None)


def norm_after(traced: Traced, model: nn.Module, node: fx.Node) -> Any:
    """The batch norm that takes a layer's output, if nothing else does."""
    user = traced.batch_norm_after(node)
    norm: Any = None if user is None else model.get_submodule(str(user.target))
    usable = norm is not None and norm.running_mean is not None and selection_of(norm) is None
    return norm if usable else None


def _is_solvable(pair: NetworkPair, node: fx.Node, all_changed: bool) -> bool:
    if not node.args or not pair.called_once(node):
        return False
    known = pair.kept_outputs(str(node.target)) is not None
    wanted = pair.changed(node) if all_changed else pair.lost_inputs(node)
    return known and wanted and isinstance(pair.layer(node), PLAIN)


class _Solver:
    """Solves one layer after the other, and notes those that have too few images."""

    def __init__(
        self, walk: Walk, settings: SolveSettings, shortcuts: dict[fx.Node, Shortcut], on_layer: OnLayer | None
    ) -> None:
        self._walk, self._pair, self._settings = walk, walk.pair, settings
        self._shortcuts, self._on_layer = shortcuts, on_layer
        self._places = {node: place for place, node in enumerate(walk.pair.nodes)}
        self.few: list[TooFewImages] = []

    def bytes_needed(self, node: fx.Node) -> int:
        """Memory of the equations of a layer: products of fitted and held-out rows, their sum and its factor."""
        groups, _, n = rows_of_weight(self._pair.layer(node)).shape
        return 6 * 8 * groups * n * min(n, self._walk.num_images * self._settings.positions)

    def images_needed(self, node: fx.Node) -> int:
        """Images that give a layer enough rows: it gains hardly anything from more."""
        layer, y = self._pair.layer(node), torch.empty(self._pair.traced.shapes[node.name], device="meta")
        n, grid = rows_of_weight(layer).shape[2], grid_of(layer, y)
        return max(LEAST, math.ceil(ENOUGH * n / min(self._settings.positions, grid)))

    def solve(self, node: fx.Node) -> None:
        """Give the layer of this node new weights, unless that is impossible."""
        name, layer = str(node.target), self._pair.layer(node)
        norm = norm_after(self._pair.traced, self._pair.models[1], node) if layer.bias is None else None
        start = start_of(layer, norm)
        parts = self._rows(node, start)
        if parts is None:
            kind = type(layer).__name__
            log.warning("%s (%s) is not a linear map of its input; it is pruned but not solved", name, kind)
            return
        fit = self._fit(name, parts, start)
        if fit is None or not bool(torch.isfinite(fit.weight).all()):
            log.warning("%s: the equations have no solution; it is pruned but not solved", name)
            return
        if self._on_layer is not None:
            whole = together(*parts)
            self._on_layer(name, relative_error(whole, unchanged(start)), relative_error(whole, fit))
        layer.weight.copy_(weight_of_rows(layer, fit.weight))
        constant = fit.constant.reshape(-1)
        if layer.bias is not None:
            layer.bias.copy_(constant)
        elif norm is not None:  # the norm subtracts its mean, so a constant in front of it lowers the mean
            norm.running_mean.sub_(constant.to(norm.running_mean))
        log.debug("%s: ridge %g", name, fit.ridge)

    def _fit(self, name: str, parts: Parts, start: Start) -> Fit | None:
        fitted, held = parts
        ridge, num_images = self._settings.ridge, self._walk.num_images
        few = too_few_images(name, start.weight.shape[2], fitted.rows + held.rows, num_images)
        if few is not None:
            self.few.append(few)
        ridges = (ridge,) if ridge is not None else RIDGES if few is None else CAREFUL
        return choose(fitted, held, start, ridges)

    def _rows(self, node: fx.Node, start: Start) -> Parts | None:
        """The rows of all images, those to fit on and those of held-out images; None if the layer is not linear."""
        seed, positions = self._settings.seed, self._settings.positions
        layer, kept = self._pair.layer(node), self._pair.kept_outputs(str(node.target))
        shortcut = self._shortcuts.get(node)
        parts: Parts | None = None
        for chunk in self._walk.upto(node):
            x, y = chunk.entering(node, 1), chunk.value(node, 0)  # [N, I, ...], [N, O, ...]
            grid = grid_of(layer, y)
            if chunk.first == 0 and acts_plainly(layer, x):
                kind = KeptRows if self._walk.num_images * min(positions, grid) < start.weight.shape[2] else GramSums
                parts = kind(), kind()
            if parts is None:
                continue  # but let all chunks run
            numbers = range(chunk.first, chunk.first + chunk.size)
            images, fitted = held_apart(numbers)
            where = spots_of(numbers, grid, positions, (seed, self._places[node]))[images]
            target = outputs_at(layer, y, where, images)[..., kept]  # [N, P, kept]
            missing = None if shortcut is None else shortcut.missing(chunk, layer, where, images)
            target = target if missing is None else target + missing
            target = target.reshape(*where.shape, len(start.weight), -1)
            add_apart(parts, fitted, inputs_at(layer, x, where, images), target)
        return parts
