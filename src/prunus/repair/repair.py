"""Recover accuracy without a gradient step: a pruned network is changed to compute what the original computes.

small = repair(graph, plan, images)              # solve the layers' weights again, front to back
small = repair(graph, plan, images, how="bn")    # correct the batch-norm statistics
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from prunus.errors import RunError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.graph.traced import check_graph
from prunus.repair.methods import REPAIRS, Repair
from prunus.score.passes import Images
from prunus.util.progress import Progress, shown, steps
from prunus.util.registry import guessed


def repair(
    graph: ChannelGraph,
    plan: Plan,
    images: Images | None,
    *,
    how: str = "solve",
    seed: int = 0,
    progress: Progress | bool | None = None,
    **options: Any,
) -> nn.Module:
    """A new model: `graph.model` pruned by `plan` and repaired on unlabelled `images`. `graph.model` is not changed.

    images: a tensor [N, C, H, W] as the network takes it, or batches, which are read once; labels are ignored.
    how: "solve" gives layers new weights by least squares, so that their outputs match the original network's on the
        same images. "bn" corrects the statistics of the batch norms after a cut. "none" only prunes.
    progress: False shows nothing; your own function is called with the layers done and the number of layers.
    options: those of the method. "solve" takes layers="changed" (every layer after a cut) or "cut" (only layers that
        lost inputs), ridge (None: chosen on held-out images) and positions (64: number of output positions of each
        image to fit on). "solve" and "bn" take memory (such as "4G"): how much the process may use.
        See `prunus.repair.methods.solve`.
    """
    check_graph(graph)
    method = REPAIRS.find(how)
    if method.needs_images and images is None:
        raise RunError(f"repair {how!r} needs images, got None")
    _check_options(method, options)
    with shown(progress, steps("repair")) as report:
        return method.run(graph, plan, images, seed=seed, progress=report, **options)


def _check_options(method: Repair, options: dict[str, Any]) -> None:
    parameters = inspect.signature(method.run).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("seed", "progress")]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        name = unknown[0]
        raise RunError(
            f"repair {method.name!r} has no option {name!r}{guessed(name, known)}; it has: {', '.join(known) or 'none'}"
        )
