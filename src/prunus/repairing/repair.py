"""Recover accuracy without a gradient step: a pruned network is changed to compute what the original computes.

    small = repair(graph, plan, images)              # solve the layers' weights again, front to back
    small = repair(graph, plan, images, how="bn")    # correct the batch-norm statistics

Importing this module imports neither a method nor torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prunus.errors import RunError
from prunus.util.progress import Progress, shown, steps
from prunus.util.registry import Entry, Registry, guessed

if TYPE_CHECKING:
    from torch import nn

    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.plan import Plan
    from prunus.scoring.passes import Images


@dataclass(frozen=True, kw_only=True)
class Repair(Entry):
    """A way to recover accuracy after a cut without training.

    Attributes:
        run: `run(graph, plan, images, *, seed, progress, **options)` returns a new model, pruned and repaired.
        needs_images: Whether `images` may not be None.
        tells_errors: Whether `run` takes on_layer, a function that is called with a layer's name and its error before
            and after its repair.
    """

    run: Callable[..., nn.Module]
    needs_images: bool = True
    tells_errors: bool = False


REPAIRS: Registry[Repair] = Registry("repair", "prunus.repairing", RunError)


def prune_only(graph: ChannelGraph, plan: Plan, _images: Any, *, seed: int, progress: Any) -> nn.Module:
    from prunus.graph.channel_graph import prune

    return prune(graph, plan)


NONE = Repair(name="none", help="Prune only, repair nothing", run=prune_only, needs_images=False)


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

    Args:
        graph: The graph of the network that `plan` prunes.
        plan: Which channels are kept.
        images: A tensor [N, C, H, W] as the network takes it, or batches, which are read once; labels are ignored.
        how: "solve" gives layers new weights by least squares, so that their outputs match the original network's on
            the same images. "bn" corrects the statistics of the batch norms after a cut. "none" only prunes.
        seed: For output positions that are drawn at random.
        progress: False shows nothing; a function is called with the layers done and the number of layers.
        options: Those of the method. "solve" takes layers="changed" (every layer after a cut) or "cut" (only layers
            that lost inputs), ridge (None: chosen on held-out images) and positions (64: number of output positions of
            each image to fit on). "solve" and "bn" take memory (such as "4G"): how much the process may use.
            See `prunus.repairing.solve`.
    """
    from prunus.graph.traced import check_graph

    check_graph(graph)
    method = REPAIRS.find(how)
    if method.needs_images and images is None:
        raise RunError(f"repair {how!r} needs images, got None")
    parameters = inspect.signature(method.run).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("seed", "progress")]
    for name in sorted(options.keys() - set(known)):
        raise RunError(
            f"repair {how!r} has no option {name!r}{guessed(name, known)}; it has: {', '.join(known) or 'none'}"
        )
    with shown(progress, steps("repair")) as report:
        return method.run(graph, plan, images, seed=seed, progress=report, **options)
