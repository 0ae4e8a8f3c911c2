"""Discrimination-aware losses at inner layers, and their gradients at the readers (DCP, Zhuang et al. 2018).

The readers are divided into stages of equal numbers, in the order in which they are called. At the end of each stage
but the last a linear classifier reads the average-pooled tensor that enters the next stage, after batch norm and
activation; its cross-entropy is the loss of the stage. The last stage has the loss of the network itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import Batches
from secateur.base.preserve_state import nothing_compiled
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.errors import ScoreError
from secateur.scoring.data_pass import walk
from secateur.scoring.evidence import ReaderGradients
from secateur.scoring.gradients import requiring
from secateur.scoring.tap_hooks import channels_first
from secateur.scoring.weights import input_slices

LOSSES = 3  # losses at inner layers, in addition to that of the network
DECAY = 1e-3  # weight decay of the inner classifiers


class InnerClassifier:
    """A linear classifier on standardised features."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        """Fit it to features [N, F] in float64: cross-entropy + DECAY / 2 |weights|^2, by L-BFGS from zero."""
        self.mean, self.deviation = features.mean(0), features.std(0, correction=0).clamp(min=1e-6)
        x = (features - self.mean) / self.deviation
        self.weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
        self.bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([self.weight, self.bias], max_iter=100, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            found = F.cross_entropy(x @ self.weight.T + self.bias, labels) + DECAY / 2 * self.weight.square().sum()
            found.backward()  # type: ignore[no-untyped-call]
            return found

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]

    def __call__(self, features: Tensor) -> Tensor:
        """Logits for features [N, F] in any floating type."""
        x = (features - self.mean.to(features)) / self.deviation.to(features)
        return x @ self.weight.detach().to(features).T + self.bias.detach().to(features)


def collect_discrimination(
    graph: ChannelGraph, batches: Batches, *, progress: Progress | None = None
) -> tuple[int, list[ReaderGradients]]:
    """The number of images, and the gradients of the stage losses for every unit. Reads the images twice."""
    stages = divide(graph)
    points = [stage[0] for stage in stages[1:]]
    pooled: list[list[Tensor]] = []
    labels: list[Tensor] = []
    classes = 0

    def keep(_: int, some: Tensor, logits: Tensor) -> None:
        nonlocal classes
        classes = logits.shape[1]
        labels.append(some)
        pooled.append([x.detach().double().cpu() for x in taps])

    with pooled_inputs(graph, points) as taps:
        walk(graph, batches, keep, progress=progress)
    every = torch.cat(labels)
    heads = [InnerClassifier(torch.cat(parts), every, classes) for parts in zip(*pooled, strict=True)]
    weights: dict[str, Any] = {name: graph.model.get_submodule(name).weight for stage in stages for name in stage}
    totals = {name: torch.zeros_like(w, dtype=torch.float64, device="cpu") for name, w in weights.items()}

    def add(batch: int, some: Tensor, logits: Tensor) -> None:
        some = some.to(logits.device)
        losses = [F.cross_entropy(head(x), some, reduction="sum") for head, x in zip(heads, taps, strict=True)]
        losses.append(F.cross_entropy(logits, some, reduction="sum"))
        waiting: list[str] = []
        for loss, stage in zip(losses, stages, strict=True):
            names = [*waiting, *stage]
            found = torch.autograd.grad(loss, [weights[n] for n in names], retain_graph=True, allow_unused=True)
            # A layer that does not lead to its stage's classifier, such as a shortcut's, has the next loss.
            waiting = [name for name, gradient in zip(names, found, strict=True) if gradient is None]
            for name, gradient in zip(names, found, strict=True):
                if gradient is not None:
                    if not bool(torch.isfinite(gradient).all()):
                        raise ScoreError(f"batch {batch}: gradients at {name} are NaN or infinite; check the images")
                    totals[name] += gradient.double().cpu()

    with requiring(list(weights.values())), pooled_inputs(graph, points) as taps:
        num_images = walk(graph, batches, add, gradients=True, progress=progress)
    return num_images, [_of_unit(graph, name, totals, num_images) for name in graph.units]


def divide(graph: ChannelGraph) -> list[list[str]]:
    """The readers in the order of their first calls, in LOSSES + 1 stages of nearly equal numbers."""
    traced = graph.found.traced
    readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
    called = [traced.layer_of(node) for node in traced.graph.nodes]
    names = [name for name in dict.fromkeys(called) if name in readers]
    count = min(LOSSES + 1, len(names))
    edges = [len(names) * i // count for i in range(count + 1)]
    return [[str(n) for n in names[a:b]] for a, b in pairwise(edges)]


@contextmanager
def pooled_inputs(graph: ChannelGraph, layers: Sequence[str]) -> Iterator[list[Tensor]]:
    """A list that holds, after every forward pass, what entered each layer, averaged over pixels: [N, F]."""
    found: list[Tensor] = [torch.zeros(())] * len(layers)

    def look(place: int, layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = channels_first(args[0], layer)
        found[place] = x.flatten(2).mean(2) if x.ndim > 2 else x

    handles = []
    try:
        for place, name in enumerate(layers):
            handles.append(graph.model.get_submodule(name).register_forward_pre_hook(partial(look, place)))
        with nothing_compiled():
            yield found
    finally:
        for handle in handles:
            handle.remove()


def _of_unit(graph: ChannelGraph, name: str, totals: dict[str, Tensor], num_images: int) -> ReaderGradients:
    unit = graph.units[name]
    parts = []
    for reader in unit.readers:
        found = input_slices(graph.model.get_submodule(reader.module), totals[reader.module], reader.inputs)
        part = torch.zeros(unit.width, found.shape[1], dtype=torch.float64)
        part[torch.from_numpy(reader.channels)] = found / num_images
        parts.append(part)
    return ReaderGradients(name, torch.cat(parts, 1))
