"""What an error in a layer's outputs does to the network's outputs, from one backward pass without labels.

    G = mean over images of the sum over positions of g g',    g = d(v . z) / dy

y are the layer's outputs at a position, z all outputs of the network, each tensor divided by its standard deviation,
and v is drawn from a normal distribution. A small error e of y changes z by a square of e' G e on average, as far as
errors at different positions are independent: G is the Gauss-Newton matrix of the outputs. The outputs of a network do
not become flat where it is sure of its answer, as its loss does, so training images that it knows by heart serve as
well as others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.runner import GraphRunner, SuffixRunner
from prunus.scoring.rows import weight_of_rows
from prunus.scoring.taps import hooked
from prunus.tasks.evaluate import tensors_of
from prunus.tasks.partial_forward import trace_agrees
from prunus.util.batches import call, count_images
from prunus.util.state import evaluating, generators_kept

BATCH = 8  # images of a backward pass: all activations are in memory
JITTER = (1e-9, 1e-8, 1e-7)  # of the mean diagonal; sums of products in float32 are no more precise than the last

NewLayer = tuple[Tensor, Tensor]  # weight [groups, o, n] and what is added to the outputs [groups, o]


class OutputWeights:
    """G of one layer. With fewer rows g than outputs they are kept themselves, which is smaller, exact and a root."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._products: Tensor | None = None  # [o, o]

    def add(self, rows: Tensor) -> None:
        """Add the rows g [m, o] of some images and positions."""
        if self._products is None and len(rows) <= rows.shape[1]:
            self._rows.append(rows.double().cpu())
            if sum(map(len, self._rows)) > rows.shape[1]:
                self._products, self._rows = _products(torch.cat(self._rows)), []
            return
        earlier = _products(torch.cat(self._rows)) if self._rows else self._products
        self._products, self._rows = _products(rows) if earlier is None else earlier + _products(rows), []

    def root(self, outputs: slice = slice(None)) -> Tensor:
        """R [m, o] with R' R = G, of these outputs."""
        if self._products is None:
            return torch.cat(self._rows)[:, outputs]
        # A little is added to the diagonal, so that a Cholesky factor can be had, which is much faster than the
        # eigenvalues of a wide layer.
        matrix = self._products[outputs, outputs]
        mean, eye = matrix.diagonal().mean(), torch.eye(len(matrix), dtype=matrix.dtype)
        for jitter in JITTER:
            factor, failed = torch.linalg.cholesky_ex(matrix + jitter * torch.where(mean > 0, mean, 1.0) * eye)
            if not int(failed):
                return torch.as_tensor(factor.T)
        values, vectors = torch.linalg.eigh(matrix)
        return torch.as_tensor(values.clamp(min=0).sqrt()[:, None] * vectors.T)


def _products(rows: Tensor) -> Tensor:
    """The sum of g g' in float64: [o, o]."""
    largest = float(rows.abs().max())
    rows = rows / largest if largest > 0 else rows  # squares may be too large for float32
    return (rows.T @ rows).double().cpu() * largest**2


class ProbeImages:
    """A few images, on which it is measured what a change of some layers does to the network's outputs."""

    def __init__(self, graph: ChannelGraph, images: Any) -> None:
        self._graph = graph
        starts = range(0, count_images(images), BATCH)
        self._batches = [tree_map(lambda t, i=i: t[i : i + BATCH], images) for i in starts]

    def change(self, layers: Mapping[str, NewLayer]) -> float:
        """Mean square change of the network's outputs, relative to their variances, with these layers changed."""
        _ = self._before, self._suffixes  # of the unchanged network
        with _changed(self._graph.model, layers):
            now = self._outputs(layers)
        pairs = zip(now, self._before, self._scales, strict=True)
        return sum(float(((z - before) / scale).square().mean()) for z, before, scale in pairs)

    def output_weights(self, layers: Sequence[str]) -> dict[str, OutputWeights]:
        """Layer -> G. Layers that no gradient reaches are left out."""
        model, draw = self._graph.model, torch.Generator().manual_seed(0)
        seen: dict[str, Tensor] = {}
        weights: dict[str, OutputWeights] = {}
        if not layers:
            return weights

        def keep(name: str, _: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
            y = y if y.requires_grad else y.detach().requires_grad_(True)  # where no weight before it takes gradients
            seen[name] = y
            return y.clone()  # an activation may write into its input

        scales = self._scales
        with evaluating(model), generators_kept(), hooked(model, layers, keep, after=True), torch.enable_grad():
            for images in self._batches:
                pairs = zip(_float_outputs(model, images), scales, strict=True)
                scaled = [(z, scale) for z, scale in pairs if z.requires_grad]
                outputs = [z for z, _ in scaled]
                pulls = [torch.randn(z.shape, generator=draw).to(z) / scale.to(z) for z, scale in scaled]
                flows = torch.autograd.grad(outputs, list(seen.values()), pulls, allow_unused=True) if outputs else ()
                for name, flow in zip(seen, flows, strict=False):
                    if flow is not None and bool(torch.isfinite(flow).all()):
                        last = flow if isinstance(model.get_submodule(name), nn.Linear) else flow.movedim(1, -1)
                        weights.setdefault(name, OutputWeights()).add(last.reshape(-1, last.shape[-1]))
                seen.clear()
        return weights

    @cached_property
    def _before(self) -> list[Tensor]:
        return self._outputs()

    @cached_property
    def _scales(self) -> list[Tensor]:
        spreads = [z.std(correction=0) for z in self._before]
        return [torch.where(spread > 0, spread, 1.0) for spread in spreads]  # a constant has no spread

    @cached_property
    def _suffixes(self) -> list[SuffixRunner]:
        """One for each batch; none if the trace does not compute what the model computes."""
        runner = GraphRunner(self._graph.analysis.traced)
        with torch.no_grad(), evaluating(self._graph.model), generators_kept():
            ends = (self._batches[-1], self._batches[0])
            agrees = all(trace_agrees(runner, images, lambda output: list(tensors_of(output))) for images in ends)
        return [SuffixRunner(runner, images) for images in self._batches] if agrees else []

    @torch.no_grad()
    def _outputs(self, changed: Collection[str] = ()) -> list[Tensor]:
        """The network's outputs. What comes before the changed layers is not computed again where that is possible."""
        model = self._graph.model
        with evaluating(model), generators_kept():
            if changed and self._suffixes:
                every = [list(tensors_of(suffix.from_layers(changed))) for suffix in self._suffixes]
            else:
                every = [_float_outputs(model, images) for images in self._batches]
        return [
            torch.cat([z.reshape(len(z), -1) if z.dim() else z.view(1, 1) for z in some])
            for some in zip(*every, strict=True)
        ]


def _float_outputs(model: nn.Module, images: Any) -> list[Tensor]:
    return list(tensors_of(call(model, tree_map(lambda t: t.clone(), images))))  # it may write into its input


@torch.no_grad()
def images_are_independent(model: nn.Module, images: Any) -> bool:
    """Whether the network, whose code depends on sizes, gives one image the same outputs alone and among others."""
    few = tree_map(lambda t: t[:BATCH], images)
    alone = tree_map(lambda t: t[:1], images)
    try:
        with evaluating(model), generators_kept():
            pairs = zip(_float_outputs(model, few), _float_outputs(model, alone), strict=True)
            return all(
                torch.allclose(many[:1], one, rtol=1e-3, atol=1e-3 * float(one.abs().max())) for many, one in pairs
            )
    except Exception:  # noqa: BLE001 - whatever the network's own code raises
        return False


@contextmanager
def _changed(model: nn.Module, layers: Mapping[str, NewLayer]) -> Iterator[None]:
    """The layers have other weights inside the block."""

    def shifted(name: str, layer: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
        shape = (-1,) if isinstance(layer, nn.Linear) else (-1, *[1] * (y.dim() - 2))
        return y + layers[name][1].reshape(-1).to(y).view(shape)

    saved: list[tuple[Tensor, Tensor]] = []
    try:
        for name, (rows, _) in layers.items():
            layer: Any = model.get_submodule(name)
            saved.append((layer.weight, layer.weight.data))
            layer.weight.data = weight_of_rows(layer, rows).to(layer.weight.device)
        with hooked(model, layers, shifted, after=True):
            yield
    finally:
        for weight, before in saved:
            weight.data = before
