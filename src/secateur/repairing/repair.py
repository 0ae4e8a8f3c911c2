"""Accuracy back without a gradient step: a pruned network made to compute what the original one computes.

    small = repair(graph, plan, images)              # layers re-solved, front to back
    small = repair(graph, plan, images, how="bn")    # batch-norm statistics re-estimated

Labels are not needed. Both networks are walked through once, in lock-step: when a layer's turn comes, everything
before it has been repaired already, and its new weights see the pruned network's real inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.errors import RunError
from secateur.repairing.batch_norms import reestimate_norms
from secateur.repairing.layer_solve import Settings, solve_layers
from secateur.repairing.lockstep import Walk
from secateur.scoring.unlabelled_images import gather

How = Literal["solve", "bn"]
Layers = Literal["changed", "cut"]
Progress = Callable[[int, int], None]  # layers done, layers in all


@torch.no_grad()
def repair(
    graph: ChannelGraph,
    plan: Plan,
    images: Tensor | Iterable[Any],
    *,
    how: How = "solve",
    layers: Layers = "changed",
    ridge: float | None = None,
    positions: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """A new model: `graph.model` pruned by `plan` and repaired on unlabelled `images`. `graph.model` is untouched.

    images: a tensor [N, C, H, W] as the network takes it, or batches of them; labels in the batches are ignored.
    how: "solve" gives layers new weights by least squares, so that what they write matches the original network's
        output on the same images. "bn" corrects the statistics of the batch norms behind a cut.
    layers: which ones are solved. "changed": every layer behind a cut, which also takes back what earlier layers could
        not mend. "cut": only those that lost inputs; quicker, and the other weights stay the original's.
    ridge: weight of the penalty, as a share of the Gram's mean diagonal; chosen on held-out images if not given.
    positions: so many positions of each feature map are used of each image, drawn at random from `seed`.
    progress: called with the layers done and the layers in all.

    The activations of all images at the widest point are held in memory, for both networks.
    """
    _check(how, layers, ridge, positions)
    inputs = gather(graph, images)
    pruned = prune(graph, plan)
    with evaluating(graph.model), evaluating(pruned), generators_kept():
        walk = Walk(graph, pruned, inputs, graph.liveness(graph.keep_of(plan)))
        if how == "bn":
            reestimate_norms(walk, progress)
        else:
            solve_layers(walk, Settings(layers == "changed", ridge, positions, seed), progress)
    return pruned


def _check(how: str, layers: str, ridge: float | None, positions: int) -> None:
    if how not in ("solve", "bn"):
        raise RunError(f'how should be "solve" or "bn", not {how!r}')
    if layers not in ("changed", "cut"):
        raise RunError(f'layers should be "changed" or "cut", not {layers!r}')
    if ridge is not None and not (math.isfinite(ridge) and ridge > 0):
        raise RunError(f"ridge should be a positive number, or None to choose it on held-out images; not {ridge!r}")
    if positions < 1:
        raise RunError(f"positions should be at least 1, not {positions!r}")
