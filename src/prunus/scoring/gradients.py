"""Passes with forward and backward: first-order effects of channels on the loss, and on losses at inner layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.scoring.evidence import Gradients, filter_places, filters, weights_at
from prunus.scoring.passes import sampled, walk
from prunus.scoring.taps import channels_first, reading_taps
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import mean_loss
from prunus.util.batches import Batches, device_of, logits_of, to_device
from prunus.util.processes import add_up, all_or_none, check_even
from prunus.util.progress import Progress
from prunus.util.state import nothing_compiled


def collect_gradients(
    graph: ChannelGraph,
    loader: Batches,
    *,
    num_images: int | None = None,
    seed: int | None = None,
    task: Task | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Gradients]:
    """Gradients of every unit in one pass. `.grad`, `requires_grad`, modes and hooks are left as they were."""
    chosen = task_of(task)
    effects = _Effects(graph, chosen)
    with requiring(list(effects.weights.values())), effects.hooked():
        batches = sampled(loader, num_images, seed, chosen)
        how: dict[str, Any] = {"before": effects.before, "gradients": True, "task": chosen, "progress": progress}
        total = all_or_none(lambda: walk(graph, batches, effects.after, **how))
    check_even(total)
    total = int(add_up(torch.tensor(float(total))))
    mean = {name: add_up(gradient) / total for name, gradient in effects.gradients.items()}
    return {
        name: Gradients(name, filters(graph, unit), filters(graph, unit, mean), add_up(effects.squares[name]), total)
        for name, unit in graph.units.items()
    }


class _Effects:
    """Sums over batches of the squared effects of channels and the gradients of weights."""

    def __init__(self, graph: ChannelGraph, task: Task) -> None:
        self._graph, self._task, self._taps = graph, task, reading_taps(graph)
        names = sorted({place.module for unit in graph.units.values() for place in filter_places(unit)})
        self.weights: dict[str, Any] = {name: graph.model.get_submodule(name).weight for name in names}
        self.squares = {n: torch.zeros(unit.width, dtype=torch.float64) for n, unit in graph.units.items()}
        self.gradients = {n: torch.zeros_like(w, dtype=torch.float64, device="cpu") for n, w in self.weights.items()}
        self._count = 0  # images of the batch
        self._views: list[tuple[str, Tensor, int]] = []  # layer, its input and the version of it, for each call

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Each reader gets a view of its input, whose gradient comes through that reader alone."""

        def look(name: str, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            view = args[0].view_as(args[0])
            self._views.append((name, view, view._version))
            return (view, *args[1:])

        model = self._graph.model
        handles = [model.get_submodule(name).register_forward_pre_hook(partial(look, name)) for name in self._taps]
        try:
            with nothing_compiled():  # compiled code does not see new hooks
                yield
        finally:
            self._views.clear()
            for handle in handles:
                handle.remove()

    def before(self, _labels: Any, count: int) -> None:
        """The number of images of the batch that runs next."""
        self._count = count

    def after(self, batch: int, labels: Any, outputs: Any) -> None:
        """Run backward, and add this batch to the sums."""
        views, self._views = self._views, []
        # Summed over the batch, so that every image has its own gradient.
        loss = mean_loss(self._task, outputs, to_device(labels, device_of(self._graph.model))) * self._count
        wanted = [*(view for _, view, _ in views), *self.weights.values()]
        with torch.no_grad():
            flows: Sequence[Tensor | None] = torch.autograd.grad(loss, wanted, allow_unused=True)
            for (name, total), gradient in zip(self.gradients.items(), flows[len(views) :], strict=True):
                total += torch.zeros(()) if gradient is None else _checked(gradient, name, batch).cpu()
            effects: dict[str, Tensor] = {}  # a channel that a layer reads in several calls is removed from all of them
            for (name, view, version), flow in zip(views, flows[: len(views)], strict=True):
                if flow is None:
                    continue
                if view._version != version:
                    raise ScoreError(
                        f"the input of {name} is overwritten in place after it is read; it cannot be scored"
                    )
                product = channels_first(view * flow, self._graph.model.get_submodule(name))
                product = product.flatten(2).sum(2) if product.ndim > 2 else product  # [N, F]
                product = _checked(product, name, batch).double().cpu()
                for slot in self._taps[name].slots:
                    width = len(self.squares[slot.unit])
                    mine = effects.setdefault(slot.unit, torch.zeros(len(product), width, dtype=torch.float64))
                    mine[:, torch.from_numpy(slot.channels)] += product[:, torch.from_numpy(slot.inputs)].sum(2)
            for unit, effect in effects.items():
                self.squares[unit] += effect.square().sum(0)


def _checked(values: Tensor, name: str, batch: int) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise ScoreError(f"batch {batch}: gradients at {name} are NaN or infinite; check the images and the weights")
    return values


@contextmanager
def requiring(weights: Sequence[Tensor]) -> Iterator[None]:
    """The weights require gradients inside the block."""
    required = [weight.requires_grad for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for weight, before in zip(weights, required, strict=True):
            weight.requires_grad_(before)


# Discrimination-aware losses at inner layers, and their gradients at the readers (DCP, Zhuang et al. 2018).

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
            value = F.cross_entropy(x @ self.weight.T + self.bias, labels) + DECAY / 2 * self.weight.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]

    def __call__(self, features: Tensor) -> Tensor:
        """Logits for features [N, F] in any floating type."""
        x = (features - self.mean.to(features)) / self.deviation.to(features)
        return x @ self.weight.detach().to(features).T + self.bias.detach().to(features)


def collect_discrimination(
    graph: ChannelGraph, batches: Batches, task: Task, *, progress: Progress | None = None
) -> tuple[int, dict[str, Tensor]]:
    """The number of images, and the gradients of the stage losses for every unit. Reads the images twice."""
    stages = divide(graph)
    points = [stage[0] for stage in stages[1:]]
    pooled: list[list[Tensor]] = []
    labels: list[Tensor] = []
    classes = 0

    def keep(_: int, some: Tensor, outputs: Any) -> None:
        nonlocal classes
        classes = logits_of(outputs).shape[1]
        labels.append(some)
        pooled.append([x.detach().double().cpu() for x in taps])

    with pooled_inputs(graph, points) as taps:
        walk(graph, batches, keep, task=task, progress=progress)
    every = torch.cat(labels)
    heads = [InnerClassifier(torch.cat(parts), every, classes) for parts in zip(*pooled, strict=True)]
    weights: dict[str, Any] = {name: graph.model.get_submodule(name).weight for stage in stages for name in stage}
    totals = {name: torch.zeros_like(w, dtype=torch.float64, device="cpu") for name, w in weights.items()}

    def add(batch: int, some: Tensor, outputs: Any) -> None:
        logits = logits_of(outputs)
        some = some.to(logits.device)
        losses = [F.cross_entropy(head(x), some, reduction="sum") for head, x in zip(heads, taps, strict=True)]
        losses.append(F.cross_entropy(logits, some, reduction="sum"))
        waiting: list[str] = []
        for loss, stage in zip(losses, stages, strict=True):
            names = [*waiting, *stage]
            flows = torch.autograd.grad(loss, [weights[n] for n in names], retain_graph=True, allow_unused=True)
            # A layer that does not lead to its stage's classifier, such as a shortcut's, has the next loss.
            waiting = [name for name, gradient in zip(names, flows, strict=True) if gradient is None]
            for name, gradient in zip(names, flows, strict=True):
                if gradient is not None:
                    totals[name] += _checked(gradient, name, batch).double().cpu()

    with requiring(list(weights.values())), pooled_inputs(graph, points) as taps:
        num_images = walk(graph, batches, add, gradients=True, task=task, progress=progress)
    mean = {name: total / num_images for name, total in totals.items()}
    return num_images, {name: weights_at(graph, unit, unit.readers, mean) for name, unit in graph.units.items()}


def divide(graph: ChannelGraph) -> list[list[str]]:
    """The readers in the order of their first calls, in LOSSES + 1 stages of nearly equal numbers."""
    traced = graph.analysis.traced
    readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
    called = [traced.layer_of(node) for node in traced.graph.nodes]
    names = [name for name in dict.fromkeys(called) if name in readers]
    count = min(LOSSES + 1, len(names))
    edges = [len(names) * i // count for i in range(count + 1)]
    return [[str(n) for n in names[a:b]] for a, b in pairwise(edges)]


@contextmanager
def pooled_inputs(graph: ChannelGraph, layers: Sequence[str]) -> Iterator[list[Tensor]]:
    """A list that holds, after every forward pass, what entered each layer, averaged over pixels: [N, F]."""
    inputs: list[Tensor] = [torch.zeros(())] * len(layers)

    def look(place: int, layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = channels_first(args[0], layer)
        inputs[place] = x.flatten(2).mean(2) if x.ndim > 2 else x

    handles = []
    try:
        for place, name in enumerate(layers):
            handles.append(graph.model.get_submodule(name).register_forward_pre_hook(partial(look, place)))
        with nothing_compiled():
            yield inputs
    finally:
        for handle in handles:
            handle.remove()
