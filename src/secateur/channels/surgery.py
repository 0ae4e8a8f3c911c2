"""Remove channels: a new, smaller model of the same class."""

from __future__ import annotations

from torch import nn

from secateur.channels.carving import carve
from secateur.channels.graph import ChannelGraph
from secateur.channels.origin import remember_plan
from secateur.channels.plan import Plan
from secateur.channels.replay import replay_plan
from secateur.channels.verifying.verification import verify
from secateur.errors import PlanError


def prune(graph: ChannelGraph, plan: Plan, *, check: bool = True) -> nn.Module:
    """A new model of the same class without the channels that the plan drops. `graph.model` is not changed.

    Where a layer reads a part of a stream, the layer (or the batch norm in front of it, if no other layer uses it)
    selects its channels. The names of parameters do not change.

    check: run the new model and the zeroed original on the example and on random inputs of its shape, and raise
        PlanError if their outputs differ by more than rounding.
    """
    if not isinstance(graph, ChannelGraph):
        raise PlanError(f"expected prune(graph, plan) with the graph of secateur.trace, got {type(graph).__name__}")
    keep = graph.keep_of(plan)
    record, slices = replay_plan(graph, keep)
    try:
        model = carve(graph, record, slices)
    except (ValueError, RuntimeError, IndexError, TypeError) as error:
        raise PlanError(f"the plan cannot be carried out on the layers of the network: {error}") from error
    if check:
        verify(graph, keep, model)
    remember_plan(model, graph.model, plan)
    return model
