"""Give layers new weights by least squares, so that they match the original network's outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from prunus.errors import RunError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.repair.least_squares import CAREFUL, RIDGES, choose
from prunus.repair.lockstep import walked
from prunus.repair.methods import Repair
from prunus.repair.solve import OnLayer, SolveSettings, solve_layers, start_of, too_few_images
from prunus.score.passes import Images
from prunus.score.reader_inputs import POSITIONS, LayerInputs
from prunus.score.rows import weight_of_rows
from prunus.util.options import check
from prunus.util.progress import Progress


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

    layers: which layers to solve. "changed": every layer after a cut, which also corrects errors that earlier layers
        could not. "cut": only layers that lost inputs; faster, and the other weights stay the original's.
    ridge: weight of the penalty, relative to the Gram matrix's mean diagonal; chosen on held-out images if None.
    positions: number of output positions of each image to fit on, drawn at random from `seed`.
    memory: how much the process may take, such as "4G"; half of the machine's by default. If the values of all images
        do not fit, they are kept in half precision and partly in a temporary file, or computed again.
    on_layer: called for each solved layer with its name, its error before and its error after. An error is the mean
        squared difference to the target, relative to each output's variance, as a mean over outputs.
    """
    settings = SolveSettings(layers, ridge, positions, seed)
    check(settings, RunError)
    with walked(graph, plan, images, memory) as walk:
        solve_layers(walk, settings, progress, on_layer)
        return walk.pair.models[1]


def reader_changes(seen: LayerInputs, norm: Any, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
    """New weights for a reader that keeps `columns`, as `run(layers="cut")` would give them."""
    layer, whole = seen.layer, start_of(seen.layer, norm)
    weight, bias = whole.weight, whole.bias
    fitted, held = (part.narrowed(columns, weight, bias) if part.rows else part for part in (seen.fitted, seen.held))
    few = too_few_images("", columns.shape[1], seen.rows, 1) is not None
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    start = replace(whole, weight=weight.gather(2, index))
    fit = choose(fitted, held, start, CAREFUL if few else RIDGES)
    if fit is None or not bool(torch.isfinite(fit.weight).all()):
        return []
    solved = torch.zeros_like(weight).scatter(2, index, fit.weight)
    changes = [(layer.weight, weight_of_rows(layer, solved))]
    if layer.bias is not None:
        changes.append((layer.bias, fit.constant.reshape(-1).to(layer.bias)))
    elif norm is not None:
        changes.append((norm.running_mean, norm.running_mean - fit.constant.reshape(-1).to(norm.running_mean)))
    return changes


ENTRY = Repair(
    name="solve",
    help="Give layers new weights by least squares, so that they match the original network's outputs",
    run=run,
    reader_changes=reader_changes,
    tells_errors=True,
)
