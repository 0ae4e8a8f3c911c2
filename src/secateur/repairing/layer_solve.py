"""Layers re-solved front to back: each one's weights fitted to what the original network's layer puts out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from secateur.base.options import option
from secateur.base.progress import Progress
from secateur.channels.selection import selection_of
from secateur.channels.traced import Traced
from secateur.repairing.least_squares import CAREFUL, RIDGES, Start, choose
from secateur.repairing.lockstep import Walk
from secateur.repairing.shortcuts import Shortcut, find_shortcut
from secateur.scoring.layer_rows import (
    PLAIN,
    acts_plainly,
    exact,
    grid_of,
    inputs_at,
    outputs_at,
    put_weight,
    rows_of_weight,
    spots,
)
from secateur.scoring.reader_inputs import POSITIONS, generator, is_held_out
from secateur.scoring.regression_sums import GramSums, KeptRows, RegressionSums

log = logging.getLogger(__name__)

ROWS_PER_WEIGHT = 2  # with fewer rows than that for each weight of a filter a small ridge fits noise


@dataclass(frozen=True)
class SolveSettings:
    """Options of the repair `solve`."""

    layers: Literal["changed", "cut"] = option("changed", "Which layers to solve", choices=("changed", "cut"))
    ridge: float | None = option(None, "Weight of the penalty; None: chosen on held-out images", above=0)
    positions: int = option(POSITIONS, "Output positions of each image to fit on", least=1)
    seed: int = 0


@dataclass(frozen=True)
class Few:
    """A layer that has too few images."""

    layer: str
    weights: int  # of one filter
    rows: int  # that an image gives
    images: int  # that it needs


def few_rows(layer: str, weights: int, rows: int, images: int) -> Few | None:
    """What to say of a layer whose filters have so many weights, if the rows that the images gave are too few."""
    if rows >= ROWS_PER_WEIGHT * weights:
        return None
    return Few(layer, weights, rows // images, math.ceil(ROWS_PER_WEIGHT * weights * images / rows))


def solve_layers(walk: Walk, settings: SolveSettings, progress: Progress | None) -> None:
    """Walk through both networks, and give layers of the pruned one new weights when their turn comes."""
    todo = [node for node in walk.nodes if _is_solvable(walk, node, settings.layers == "changed")]
    few: list[Few] = []
    for node in walk.nodes:
        if not walk.done(node):
            if node in todo:
                walk.run(node, sides=(0,))
                _solve(walk, node, settings, todo, few)
                walk.run(node, sides=(1,))
                if progress is not None:
                    progress(sum(walk.done(n) for n in todo), len(todo))
            else:
                walk.run(node)
        walk.free(node)
    warn_of_few(
        walk.images,
        few,
        "A larger ridge is used there." if settings.ridge is None else f"The given ridge {settings.ridge:g} is kept.",
    )


def _is_solvable(walk: Walk, node: fx.Node, all_changed: bool) -> bool:
    if node.op != "call_module" or not node.args or walk.traced.calls[str(node.target)] != 1:
        return False
    known = walk.kept_outputs(str(node.target)) is not None
    wanted = walk.changed(node) if all_changed else walk.lost_inputs(node)
    return known and wanted and isinstance(walk.layer(node), PLAIN)


def _solve(walk: Walk, node: fx.Node, settings: SolveSettings, todo: list[fx.Node], few: list[Few]) -> None:
    name, layer = str(node.target), walk.layer(node)
    if not acts_plainly(layer, walk.entering(node, 1, 0)):
        log.warning("%s (%s) is no plain linear map of its input, and stays as it was cut", name, type(layer).__name__)
        return
    start = rows_of_weight(layer)  # [groups, o, n]
    norm = norm_behind(walk.traced, walk.models[1], node) if layer.bias is None else None
    shortcut = find_shortcut(walk, node, todo)
    fitted, held = _collect(walk, node, layer, settings, shortcut, start)
    rows = fitted.rows + held.rows
    ridges: Sequence[float] = RIDGES if settings.ridge is None else (settings.ridge,)
    lacking = few_rows(name, start.shape[2], rows, walk.images)
    if lacking is not None:
        few.append(lacking)
        ridges = CAREFUL if settings.ridge is None else ridges
    fit = choose(fitted, held, start_of(layer, norm), ridges)
    if fit is None or not bool(torch.isfinite(fit.weight).all()):
        log.warning("%s: the equations have no solution, and it stays as it was cut", name)
        return
    put_weight(layer, fit.weight)
    constant = fit.constant.reshape(-1)
    if layer.bias is not None:
        layer.bias.copy_(constant)
    elif norm is not None:  # the norm subtracts its mean: a constant in front of it is one taken off that
        norm.running_mean.sub_(constant.to(norm.running_mean))
    log.debug("%s: ridge %g", name, fit.ridge)


def _collect(
    walk: Walk, node: fx.Node, layer: nn.Module, settings: SolveSettings, shortcut: Shortcut | None, start: Tensor
) -> tuple[RegressionSums, RegressionSums]:
    """The rows of all images: those to fit on, and those of held-out images."""
    kept = walk.kept_outputs(str(node.target))
    place = walk.nodes.index(node)
    grid = min(settings.positions, grid_of(layer, walk.value(node, 0, 0)))
    kind = KeptRows if walk.images * grid < start.shape[2] else GramSums
    fitted, held, first = kind(), kind(), 0
    for chunk in range(len(walk.sizes)):
        y = walk.value(node, 0, chunk)  # [N, O, ...]
        where = spots(len(y), grid_of(layer, y), settings.positions, generator(settings.seed, place, chunk))
        x = inputs_at(layer, walk.entering(node, 1, chunk), where)  # [N, P, groups, n]
        target = outputs_at(layer, y, where)[..., kept]  # [N, P, kept]
        if shortcut is not None:
            target = target + shortcut.missing(chunk, layer, where)
        target = target.reshape(*where.shape, len(start), -1)  # [N, P, groups, o]
        out = is_held_out(first, len(y))
        for sums, images in ((fitted, ~out), (held, out)):
            if bool(images.any()):
                sums.add(exact(x[images].flatten(0, 1)), exact(target[images].flatten(0, 1)))
        first += len(y)
    return fitted, held


def start_of(layer: Any, norm: Any) -> Start:
    """Where a fit of the layer starts; `norm` is the batch norm after it, if there is one."""
    weight = rows_of_weight(layer)
    bias = torch.zeros_like(weight[:, :, 0]) if layer.bias is None else exact(layer.bias).reshape(weight.shape[:2])
    return Start(weight, bias, layer.bias is not None or norm is not None)


def norm_behind(traced: Traced, model: nn.Module, node: fx.Node) -> Any:
    """The batch norm that takes a layer's output, if nothing else does."""
    user = traced.batch_norm_after(node)
    norm: Any = None if user is None else model.get_submodule(str(user.target))
    usable = norm is not None and norm.running_mean is not None and selection_of(norm) is None
    return norm if usable else None


def warn_of_few(images: int, few: Sequence[Few], ending: str) -> None:
    """Say how many images it would take."""
    if not few:
        return
    worst = max(few, key=lambda f: f.images)
    log.warning(
        "%d images are too few for %d of the layers: %s has %d weights a filter, an image gives it %d rows, and it "
        "needs at least %d images. %s",
        images,
        len(few),
        worst.layer,
        worst.weights,
        worst.rows,
        worst.images,
        ending,
    )
