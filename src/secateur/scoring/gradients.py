"""A pass with forward and backward: first-order effects of removing a channel on the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import Batches, count_images, device_of, labels_to
from secateur.base.distributed import add_up, all_or_none, check_even
from secateur.base.preserve_state import nothing_compiled
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.errors import ScoreError
from secateur.measuring.quality_sums import mean_loss
from secateur.measuring.tasks import Task, is_classification, task_of
from secateur.scoring.data_pass import walk
from secateur.scoring.evidence import Gradients
from secateur.scoring.sampling import sampled
from secateur.scoring.tap_hooks import Tap, channels_first, reading_taps
from secateur.scoring.weights import filter_places, filters


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
    taps = reading_taps(graph)
    names = sorted({place.module for unit in graph.units.values() for place in filter_places(unit)})
    weights = {name: graph.model.get_submodule(name).weight for name in names}
    chosen = task_of(task)
    effects = _Effects(graph, taps, weights, chosen)  # type: ignore[arg-type]
    with requiring(list(weights.values())), effects.hooked():  # type: ignore[arg-type]
        batches = sampled(loader, num_images, seed, chosen)
        how: dict[str, Any] = {"gradients": True, "task": chosen, "progress": progress}
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

    def __init__(self, graph: ChannelGraph, taps: Mapping[str, Tap], weights: dict[str, Tensor], task: Task) -> None:
        self._task = task
        self._graph, self._taps, self._weights = graph, taps, weights
        self._count = 0  # images of the batch
        self._views: list[tuple[str, Tensor, int]] = []  # layer, its input and the version of it, for each call
        self.squares = {n: torch.zeros(unit.width, dtype=torch.float64) for n, unit in graph.units.items()}
        self.gradients = {n: torch.zeros_like(w, dtype=torch.float64, device="cpu") for n, w in weights.items()}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Each reader gets a view of its input, whose gradient comes through that reader alone."""
        model = self._graph.model
        handles = [model.get_submodule(n).register_forward_pre_hook(partial(self._look, n)) for n in self._taps]
        handles.append(model.register_forward_pre_hook(self._count_inputs, with_kwargs=True))
        try:
            with nothing_compiled():  # compiled code does not see new hooks
                yield
        finally:
            self._views.clear()
            for handle in handles:
                handle.remove()

    def _count_inputs(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._count = count_images((args, kwargs))

    def _look(self, name: str, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        view = args[0].view_as(args[0])
        self._views.append((name, view, view._version))
        return (view, *args[1:])

    def after(self, batch: int, labels: Any, outputs: Any) -> None:
        """Run backward, and add this batch to the sums."""
        views, self._views = self._views, []
        # Summed over the batch, so that every image has its own gradient.
        loss = self._summed_loss(outputs, labels_to(labels, device_of(self._graph.model)))
        wanted = [*(view for _, view, _ in views), *self._weights.values()]
        with torch.no_grad():
            found: Sequence[Tensor | None] = torch.autograd.grad(loss, wanted, allow_unused=True)
            for (name, total), gradient in zip(self.gradients.items(), found[len(views) :], strict=True):
                total += torch.zeros(()) if gradient is None else _checked(gradient, name, batch).cpu()
            self._add_squares(views, found[: len(views)], batch)

    def _summed_loss(self, outputs: Any, labels: Any) -> Tensor:
        if is_classification(self._task):
            return F.cross_entropy(outputs, labels, reduction="sum")
        return mean_loss(self._task, outputs, labels) * self._count

    def _add_squares(
        self, views: Sequence[tuple[str, Tensor, int]], flows: Sequence[Tensor | None], batch: int
    ) -> None:
        """Add the squared effects. A channel that a layer reads in several calls is removed from all of them."""
        effects: dict[str, Tensor] = {}
        for (name, view, version), flow in zip(views, flows, strict=True):
            if flow is None:
                continue
            if view._version != version:
                raise ScoreError(f"the input of {name} is overwritten in place after it is read; it cannot be scored")
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
    found = [weight.requires_grad for weight in weights]
    try:
        for weight in weights:
            weight.requires_grad_(True)
        yield
    finally:
        for weight, required in zip(weights, found, strict=True):
            weight.requires_grad_(required)
