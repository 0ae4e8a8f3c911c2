"""Batch norms folded into the layers before them: the same function with fewer operations."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn

from prunus.errors import ModelError
from prunus.graph.compare import difference
from prunus.graph.layer_trials import try_layers
from prunus.graph.record import left_as_found, trace_calls
from prunus.graph.traced import Example, Traced, check_network

FOLDING = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@torch.no_grad()
def fold_batch_norm(model: nn.Module, example: Example) -> nn.Module:
    """A copy in which each batch norm that directly follows a conv or linear layer is part of that layer:

        W' = W g / sqrt(var + eps),    b' = (b - mean) g / sqrt(var + eps) + beta

    An Identity replaces the norm. The copy is for inference and is in eval mode. A norm stays if it follows anything
    else, or a layer whose output is also used elsewhere. Raises ModelError if the outputs on the example differ by
    more than rounding.
    """
    check_network(model)
    with left_as_found(model):
        traced = trace_calls(model, example)
        opaque, computing = try_layers(traced)
    folded = copy.deepcopy(model).eval()
    for node in traced.graph.nodes:
        user = _norm_after(traced, node)
        if user is None or {str(node.target), str(user.target)} & set(opaque) or str(node.target) in computing:
            continue  # weights that are shared or computed must not change
        layer: Any = folded.get_submodule(str(node.target))
        norm: Any = folded.get_submodule(str(user.target))
        one = torch.ones_like(norm.running_var)
        gain = (one if norm.weight is None else norm.weight).double() / torch.sqrt(norm.running_var.double() + norm.eps)
        before = 0.0 if layer.bias is None else layer.bias.double()
        bias = (before - norm.running_mean.double()) * gain + (0.0 if norm.bias is None else norm.bias.double())
        weight = layer.weight.double() * gain.view(-1, *[1] * (layer.weight.dim() - 1))
        trains = layer.weight.requires_grad
        layer.weight = nn.Parameter(weight.to(layer.weight.dtype), requires_grad=trains)
        layer.bias = nn.Parameter(bias.to(layer.weight.dtype), requires_grad=trains)
        identity = nn.Identity().eval()
        identity.num_features = norm.num_features  # code may ask for it
        folded.set_submodule(str(user.target), identity)
    with left_as_found(model):
        model.eval()
        changed = difference(folded, model, example)
    if changed is not None:
        raise ModelError(
            f"folding the batch norms of {type(model).__name__} is not exact: {changed}. One of its layers does not "
            "behave like its class"
        )
    return folded


def _norm_after(traced: Traced, node: fx.Node) -> fx.Node | None:
    """The batch norm that is the only reader of a layer's output."""
    if node.op != "call_module" or traced.calls[str(node.target)] != 1 or not isinstance(traced.module(node), FOLDING):
        return None
    user = traced.batch_norm_after(node)
    if user is None:
        return None
    layer, norm = traced.module(node), traced.module(user)
    # Channels are the last axis of a linear layer and the second axis of a norm: the same axis only if there are two.
    flat = not isinstance(layer, nn.Linear) or len(traced.shapes[node.name]) == 2
    hooked = layer._forward_hooks or norm._forward_pre_hooks or norm._forward_hooks
    own = "weight" in layer._parameters  # not computed, as by a weight norm
    return user if flat and own and not hooked and norm.running_mean is not None else None
