"""What an error in a layer's outputs does to the network's outputs, from one backward pass without labels.

    G = mean over images of the sum over positions of g g',    g = d(v . z) / dy

y are the layer's outputs at a position, z all outputs of the network, each tensor divided by its standard deviation,
and v is drawn from a normal distribution. A small error e of y changes z by a square of e' G e on average, as far as
errors at different positions are independent. The outputs of a network do not become flat where it is sure of its
answer, as its loss does, so training images that it knows by heart serve as well as others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from secateur.base.batches import call
from secateur.base.preserve_state import evaluating, generators_kept, nothing_compiled
from secateur.channels.graph import ChannelGraph

BATCH = 8  # images of a backward pass: all activations are in memory


def float_outputs(model: nn.Module, images: Any) -> list[Tensor]:
    """The tensors of floating point numbers that the network returns."""
    return floats_of(call(model, tree_map(lambda t: t.clone(), images)))  # the network may write into its input


def floats_of(output: Any) -> list[Tensor]:
    """The tensors of floating point numbers in a network's output."""
    return [t for t in tree_flatten(output)[0] if isinstance(t, Tensor) and t.is_floating_point()]


def collect_stakes(
    graph: ChannelGraph, layers: Iterable[str], batches: Sequence[Any], scales: Sequence[Tensor], seed: int = 0
) -> dict[str, Tensor]:
    """Layer -> G [o, o]. Layers that no gradient reaches are left out.

    batches: of a few images each.
    scales: standard deviation of each of the network's outputs.
    """
    seen: dict[str, Tensor] = {}
    found: dict[str, Tensor] = {}
    layers = list(layers)
    if not layers:
        return found
    model, draw = graph.model, torch.Generator().manual_seed(seed)
    handles = [model.get_submodule(name).register_forward_hook(partial(_keep, seen, name)) for name in layers]
    try:
        with evaluating(model), generators_kept(), nothing_compiled(), torch.enable_grad():
            for images in batches:
                pairs = zip(float_outputs(model, images), scales, strict=True)
                scaled = [(z, scale) for z, scale in pairs if z.requires_grad]
                outputs = [z for z, _ in scaled]
                pulls = [_drawn(z, draw) / scale.to(z) for z, scale in scaled]
                flows = torch.autograd.grad(outputs, list(seen.values()), pulls, allow_unused=True) if outputs else ()
                for name, flow in zip(seen, flows, strict=False):
                    if flow is not None and bool(torch.isfinite(flow).all()):
                        found[name] = found.get(name, 0.0) + _products(model.get_submodule(name), flow)
                seen.clear()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _keep(seen: dict[str, Tensor], name: str, layer: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
    y = y if y.requires_grad else y.detach().requires_grad_(True)  # where no weight before it takes gradients
    seen[name] = y
    return y.clone()  # an activation may write into its input


def _drawn(z: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(z.shape, generator=draw).to(z)


def _products(layer: nn.Module, flow: Tensor) -> Tensor:
    """Sum over images and positions of g g': [o, o]."""
    last = flow if isinstance(layer, nn.Linear) else flow.movedim(1, -1)
    rows = last.reshape(-1, last.shape[-1])
    largest = rows.abs().max()
    rows = rows / largest if float(largest) > 0 else rows  # squares may be too large for float32
    return (rows.T @ rows).double().cpu() * float(largest) ** 2
