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
JITTER = (1e-9, 1e-8, 1e-7)  # of the mean diagonal; sums of products in float32 are no more precise than the last


class Stakes:
    """G of one layer. With fewer rows g than outputs they are kept themselves, which is smaller, exact and a root."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._products: Tensor | None = None  # [o, o]

    def add(self, rows: Tensor) -> None:
        """Add the rows g [m, o] of some images and positions."""
        many = len(rows) > rows.shape[1]
        if self._products is None and not many:
            self._rows.append(rows.double().cpu())
            if sum(map(len, self._rows)) > rows.shape[1]:
                self._products, self._rows = _products(torch.cat(self._rows)), []
            return
        earlier = self._products if self._rows == [] else _products(torch.cat(self._rows))
        self._products, self._rows = _products(rows) if earlier is None else earlier + _products(rows), []

    def matrix(self) -> Tensor:
        """G: [o, o]."""
        return _products(torch.cat(self._rows)) if self._products is None else self._products

    def root(self, outputs: slice = slice(None)) -> Tensor:
        """R [m, o] with R' R = G, of these outputs."""
        if self._products is None:
            return torch.cat(self._rows)[:, outputs]
        return _root(self._products[outputs, outputs])


def float_outputs(model: nn.Module, images: Any) -> list[Tensor]:
    """The tensors of floating point numbers that the network returns."""
    return floats_of(call(model, tree_map(lambda t: t.clone(), images)))  # the network may write into its input


def floats_of(output: Any) -> list[Tensor]:
    """The tensors of floating point numbers in a network's output."""
    return [t for t in tree_flatten(output)[0] if isinstance(t, Tensor) and t.is_floating_point()]


def collect_stakes(
    graph: ChannelGraph, layers: Iterable[str], batches: Sequence[Any], scales: Sequence[Tensor], seed: int = 0
) -> dict[str, Stakes]:
    """Layer -> G. Layers that no gradient reaches are left out.

    batches: of a few images each.
    scales: standard deviation of each of the network's outputs.
    """
    seen: dict[str, Tensor] = {}
    found: dict[str, Stakes] = {}
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
                        found.setdefault(name, Stakes()).add(_rows_of(model.get_submodule(name), flow))
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


def _rows_of(layer: nn.Module, flow: Tensor) -> Tensor:
    """The gradients of all images and positions: [m, o]."""
    last = flow if isinstance(layer, nn.Linear) else flow.movedim(1, -1)
    return last.reshape(-1, last.shape[-1])


def _products(rows: Tensor) -> Tensor:
    """The sum of g g' in float64: [o, o]."""
    largest = float(rows.abs().max())
    rows = rows / largest if largest > 0 else rows  # squares may be too large for float32
    return (rows.T @ rows).double().cpu() * largest**2


def _root(matrix: Tensor) -> Tensor:
    """R with R' R = G. A little is added to the diagonal, so that a Cholesky factor can be had, which is much faster
    than the eigenvalues of a wide layer."""
    mean, eye = matrix.diagonal().mean(), torch.eye(len(matrix), dtype=matrix.dtype)
    for jitter in JITTER:
        factor, failed = torch.linalg.cholesky_ex(matrix + jitter * torch.where(mean > 0, mean, 1.0) * eye)
        if not int(failed):
            return torch.as_tensor(factor.T)
    values, vectors = torch.linalg.eigh(matrix)
    return torch.as_tensor(values.clamp(min=0).sqrt()[:, None] * vectors.T)
