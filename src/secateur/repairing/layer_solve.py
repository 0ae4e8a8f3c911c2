"""Layers solved front to back: the weights of each are fitted to the output of the original network's layer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn

from secateur.base.options import option
from secateur.base.progress import Progress
from secateur.channels.selection import selection_of
from secateur.channels.traced import Traced
from secateur.repairing.least_squares import CAREFUL, RIDGES, Fit, Start, choose
from secateur.repairing.lockstep import Walk
from secateur.repairing.shortcuts import Shortcut, find_shortcut
from secateur.repairing.too_few_images import TooFewImages, too_few_images, warn_of_few_images
from secateur.scoring.layer_rows import (
    PLAIN,
    acts_plainly,
    exact,
    grid_of,
    inputs_at,
    outputs_at,
    rows_of_weight,
    spots,
    weight_of_rows,
)
from secateur.scoring.reader_inputs import POSITIONS, generator
from secateur.scoring.regression_sums import GramSums, KeptRows, Parts, add_apart

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SolveSettings:
    """Options of the repair `solve`."""

    layers: Literal["changed", "cut"] = option("changed", "Which layers to solve", choices=("changed", "cut"))
    ridge: float | None = option(None, "Weight of the penalty; None: chosen on held-out images", above=0)
    positions: int = option(POSITIONS, "Output positions of each image to fit on", least=1)
    seed: int = 0


def solve_layers(walk: Walk, settings: SolveSettings, progress: Progress | None) -> None:
    """Run both networks in lockstep, and give layers of the pruned one new weights before they run."""
    todo = [node for node in walk.nodes if _is_solvable(walk, node, settings.layers == "changed")]
    solver = _Solver(walk, settings, todo)
    for node in walk.nodes:
        if node in todo and not walk.done(node):
            walk.run(node, sides=(0,))
            solver.solve(node)
            walk.run(node, sides=(1,))
            if progress is not None:
                progress(sum(walk.done(n) for n in todo), len(todo))
        elif not walk.done(node):
            walk.run(node)
        walk.free(node)
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


def _is_solvable(walk: Walk, node: fx.Node, all_changed: bool) -> bool:
    if node.op != "call_module" or not node.args or walk.traced.calls[str(node.target)] != 1:
        return False
    known = walk.kept_outputs(str(node.target)) is not None
    wanted = walk.changed(node) if all_changed else walk.lost_inputs(node)
    return known and wanted and isinstance(walk.layer(node), PLAIN)


class _Solver:
    """Solves one layer after the other, and notes those that have too few images."""

    def __init__(self, walk: Walk, settings: SolveSettings, todo: list[fx.Node]) -> None:
        self._walk, self._settings, self._todo = walk, settings, todo
        self.few: list[TooFewImages] = []

    def solve(self, node: fx.Node) -> None:
        """Give the layer of this node new weights, unless that is impossible."""
        walk, name = self._walk, str(node.target)
        layer = walk.layer(node)
        if not acts_plainly(layer, walk.entering(node, 1, 0)):
            kind = type(layer).__name__
            log.warning("%s (%s) is not a linear map of its input; it is pruned but not solved", name, kind)
            return
        norm = norm_after(walk.traced, walk.models[1], node) if layer.bias is None else None
        fit = self._fit(node, start_of(layer, norm))
        if fit is None or not bool(torch.isfinite(fit.weight).all()):
            log.warning("%s: the equations have no solution; it is pruned but not solved", name)
            return
        layer.weight.copy_(weight_of_rows(layer, fit.weight))
        constant = fit.constant.reshape(-1)
        if layer.bias is not None:
            layer.bias.copy_(constant)
        elif norm is not None:  # the norm subtracts its mean, so a constant in front of it lowers the mean
            norm.running_mean.sub_(constant.to(norm.running_mean))
        log.debug("%s: ridge %g", name, fit.ridge)

    def _fit(self, node: fx.Node, start: Start) -> Fit | None:
        ridge, num_images = self._settings.ridge, self._walk.num_images
        fitted, held = self._rows(node, start, find_shortcut(self._walk, node, self._todo))
        few = too_few_images(str(node.target), start.weight.shape[2], fitted.rows + held.rows, num_images)
        if few is not None:
            self.few.append(few)
        ridges = (ridge,) if ridge is not None else RIDGES if few is None else CAREFUL
        return choose(fitted, held, start, ridges)

    def _rows(self, node: fx.Node, start: Start, shortcut: Shortcut | None) -> Parts:
        """The rows of all images: those to fit on, and those of held-out images."""
        walk, settings = self._walk, self._settings
        layer, kept, place = walk.layer(node), walk.kept_outputs(str(node.target)), walk.nodes.index(node)
        grid = min(settings.positions, grid_of(layer, walk.value(node, 0, 0)))
        kind = KeptRows if walk.num_images * grid < start.weight.shape[2] else GramSums
        parts: Parts = kind(), kind()
        first = 0
        for chunk in range(len(walk.sizes)):
            y = walk.value(node, 0, chunk)  # [N, O, ...]
            where = spots(len(y), grid_of(layer, y), settings.positions, generator(settings.seed, place, chunk))
            x = inputs_at(layer, walk.entering(node, 1, chunk), where)  # [N, P, groups, n]
            target = outputs_at(layer, y, where)[..., kept]  # [N, P, kept]
            if shortcut is not None:
                target = target + shortcut.missing(chunk, layer, where)
            add_apart(parts, first, exact(x), exact(target).reshape(*where.shape, len(start.weight), -1))
            first += len(y)
        return parts
