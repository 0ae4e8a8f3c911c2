"""How much the network's outputs change if one unit is cut and its readers are re-solved: measured on a few images."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from secateur.base.preserve_state import evaluating, generators_kept, nothing_compiled
from secateur.channels.graph import ChannelGraph
from secateur.channels.runner import GraphRunner
from secateur.channels.suffix_runner import SuffixRunner
from secateur.measuring.partial_forward import trace_agrees
from secateur.scoring.layer_rows import weight_of_rows
from secateur.scoring.output_stakes import BATCH, Stakes, collect_stakes, float_outputs, floats_of
from secateur.scoring.unlabelled_images import count_of

NewLayer = tuple[Tensor, Tensor]  # weight [groups, o, n] and what is added to the outputs [groups, o]


class Judges:
    """A few images, and what the whole network returns for them."""

    def __init__(self, graph: ChannelGraph, images: Any) -> None:
        self._graph = graph
        starts = range(0, count_of(images), BATCH)
        self._batches = [tree_map(lambda t, i=i: t[i : i + BATCH], images) for i in starts]

    def change(self, layers: Mapping[str, NewLayer]) -> float:
        """Mean square change of the network's outputs, relative to their variances, with these layers changed."""
        _ = self._before, self._suffixes  # of the unchanged network
        with _changed(self._graph.model, layers):
            now = self._outputs(layers)
        pairs = zip(now, self._before, self._scales, strict=True)
        return sum(float(((z - before) / scale).square().mean()) for z, before, scale in pairs)

    def stakes(self, layers: list[str]) -> dict[str, Stakes]:
        """Layer -> what errors of its outputs do to the network's outputs (see `output_stakes`)."""
        return collect_stakes(self._graph, layers, self._batches, self._scales)

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
        runner = GraphRunner(self._graph.found.traced)
        with torch.no_grad(), evaluating(self._graph.model), generators_kept():
            agrees = all(trace_agrees(runner, images, floats_of) for images in (self._batches[-1], self._batches[0]))
        return [SuffixRunner(runner, images) for images in self._batches] if agrees else []

    @torch.no_grad()
    def _outputs(self, changed: Collection[str] = ()) -> list[Tensor]:
        """The network's outputs. What comes before the changed layers is not computed again where that is possible."""
        model = self._graph.model
        with evaluating(model), generators_kept():
            if changed and self._suffixes:
                every = [floats_of(suffix.from_layers(changed)) for suffix in self._suffixes]
            else:
                every = [float_outputs(model, images) for images in self._batches]
        return [
            torch.cat([z.reshape(len(z), -1) if z.dim() else z.view(1, 1) for z in some])
            for some in zip(*every, strict=True)
        ]


@torch.no_grad()
def takes_any_batch(model: nn.Module, images: Any) -> bool:
    """Whether the network, whose code depends on sizes, gives one image the same outputs alone and among others."""
    few = tree_map(lambda t: t[:BATCH], images)
    alone = tree_map(lambda t: t[:1], images)
    try:
        with evaluating(model), generators_kept():
            pairs = zip(float_outputs(model, few), float_outputs(model, alone), strict=True)
            return all(
                torch.allclose(many[:1], one, rtol=1e-3, atol=1e-3 * float(one.abs().max())) for many, one in pairs
            )
    except Exception:  # noqa: BLE001 - whatever the network's own code raises
        return False


@contextmanager
def _changed(model: nn.Module, layers: Mapping[str, NewLayer]) -> Iterator[None]:
    """The layers have other weights inside the block."""
    saved: list[tuple[Tensor, Tensor]] = []
    hooks = []
    try:
        for name, (rows, constant) in layers.items():
            layer: Any = model.get_submodule(name)
            saved.append((layer.weight, layer.weight.data))
            layer.weight.data = weight_of_rows(layer, rows).to(layer.weight.device)
            hooks.append(layer.register_forward_hook(partial(_shifted, constant.reshape(-1))))
        with nothing_compiled():  # compiled code does not see new hooks
            yield
    finally:
        for weight, before in saved:
            weight.data = before
        for hook in hooks:
            hook.remove()


def _shifted(constant: Tensor, layer: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
    shape = (-1,) if isinstance(layer, nn.Linear) else (-1, *[1] * (y.dim() - 2))
    return y + constant.to(y).view(shape)
