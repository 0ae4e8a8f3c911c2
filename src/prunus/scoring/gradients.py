"""Passes with forward and backward: effects of channels on the loss, losses at inner layers, and NISP's importance."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.multihead import Projection
from prunus.graph.rules import layers as layer_rules
from prunus.graph.rules import pointwise
from prunus.graph.rules.rulebook import FUNCTIONS, LAYERS, METHODS
from prunus.graph.runner import Compute, GraphRunner, Values
from prunus.graph.traced import CONVOLUTIONS
from prunus.scoring.evidence import Gradients, filter_places, filters, weights_at
from prunus.scoring.passes import sampled, walk
from prunus.scoring.taps import channels_first, hooked, reading_taps
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import trainable_loss
from prunus.util.batches import Batches, device_of, logits_of, to_device
from prunus.util.processes import add_up, all_or_none, check_even
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept, nothing_compiled


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
    model, chosen, taps = graph.model, task_of(task), reading_taps(graph)
    names = sorted({place.module for unit in graph.units.values() for place in filter_places(unit)})
    weights, rows, gradients = _weights_of(graph, names)
    squares = {name: torch.zeros(unit.width, dtype=torch.float64) for name, unit in graph.units.items()}
    views: list[tuple[str, Tensor, int]] = []  # layer, its input and the version of it, for each call of the batch
    count = 0  # images of the batch

    def look(name: str, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Each reader gets a view of its input, whose gradient comes through that reader alone."""
        view = args[0].view_as(args[0])
        views.append((name, view, view._version))
        return (view, *args[1:])

    def before(_labels: Any, images: int) -> None:
        nonlocal count
        count = images

    def after(batch: int, labels: Any, outputs: Any) -> None:
        # Summed over the batch, so that every image has its own gradient.
        loss = trainable_loss(chosen, outputs, to_device(labels, device_of(model))) * count
        wanted = [*(view for _, view, _ in views), *weights.values()]
        with torch.no_grad():
            flows: Sequence[Tensor | None] = torch.autograd.grad(loss, wanted, allow_unused=True)
            for (name, total), gradient in zip(gradients.items(), flows[len(views) :], strict=True):
                total += torch.zeros(()) if gradient is None else _checked(gradient[rows[name]], name, batch).cpu()
            effects: dict[str, Tensor] = {}  # a channel that a layer reads in several calls is removed from all of them
            for (name, view, version), flow in zip(views, flows[: len(views)], strict=True):
                if flow is None:
                    continue
                if view._version != version:
                    raise ScoreError(
                        f"the input of {name} is overwritten in place after it is read; it cannot be scored"
                    )
                product = channels_first(view * flow, model.get_submodule(name))
                product = product.flatten(2).sum(2) if product.ndim > 2 else product  # [N, F]
                product = _checked(product, name, batch).double().cpu()
                for slot in taps[name]:
                    mine = effects.setdefault(
                        slot.unit, torch.zeros(len(product), graph.units[slot.unit].width).double()
                    )
                    mine[:, torch.from_numpy(slot.channels)] += product[:, torch.from_numpy(slot.inputs)].sum(2)
            for unit, effect in effects.items():
                squares[unit] += effect.square().sum(0)
        views.clear()

    with requiring(list(weights.values())), hooked(model, taps, look):
        batches = sampled(loader, num_images, seed, chosen)
        how: dict[str, Any] = {"before": before, "gradients": True, "task": chosen, "progress": progress}
        total = all_or_none(lambda: walk(graph, batches, after, **how))
    check_even(total)
    total = int(add_up(torch.tensor(float(total))))
    mean = {name: add_up(gradient) / total for name, gradient in gradients.items()}
    return {
        name: Gradients(name, filters(graph, unit), filters(graph, unit, mean), add_up(squares[name]), total)
        for name, unit in graph.units.items()
    }


def _checked(values: Tensor, name: str, batch: int) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise ScoreError(f"batch {batch}: gradients at {name} are NaN or infinite; check the images and the weights")
    return values


def _weights_of(
    graph: ChannelGraph, layers: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, slice], dict[str, Tensor]]:
    """The parameters that the layers' weights are made of, their rows there, and zeros to add their gradients to."""
    weights, rows, totals = dict[str, Tensor](), dict[str, slice](), dict[str, Tensor]()
    for name in layers:
        layer: Any = graph.model.get_submodule(name)
        shared = isinstance(layer, Projection)  # queries, keys and values may share a parameter
        weights[name] = getattr(layer.owner, layer.tensors[0]) if shared else layer.weight
        rows[name] = layer.rows if shared else slice(None)
        totals[name] = torch.zeros_like(weights[name][rows[name]], dtype=torch.float64, device="cpu")
    return weights, rows, totals


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
    weights, rows, totals = _weights_of(graph, [name for stage in stages for name in stage])

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
                    totals[name] += _checked(gradient[rows[name]], name, batch).double().cpu()

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

    def look(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = channels_first(args[0], layer)
        inputs[layers.index(name)] = x.flatten(2).mean(2) if x.ndim > 2 else x

    with hooked(graph.model, layers, look):
        yield inputs


# Importance of the classifier's inputs, propagated back through the graph (NISP, Yu et al. 2018). They bound the change
# of the final responses by s_l = |W_(l+1)|' s_(l+1), layer by layer: activations pass the importance on, and so do
# shortcuts. This is the gradient of sum(s x final responses) in a network with |weights| and without activations, so
# one backward pass of such a copy gives the importance at every layer.

LOADING = 0.5  # share of the deviations in infinite feature selection; the rest is that of the correlations
REACH = 0.9  # r x the largest eigenvalue of A
LEFT_OUT = (pointwise.elementwise, pointwise.softmax, layer_rules.norm_over_channels, layer_rules.group_norm)


def collect_importance(
    graph: ChannelGraph, batches: Batches, *, progress: Progress | None = None
) -> tuple[int, dict[str, Tensor]]:
    """The number of images, and the importance of every unit's channels."""
    traced = graph.analysis.traced
    kinds = (*CONVOLUTIONS, nn.Linear)
    called = [(node, traced.layer_of(node)) for node in traced.graph.nodes]
    mixing = [(node, name) for node, name in called if name is not None and isinstance(traced.modules.get(name), kinds)]
    if not mixing:
        raise ScoreError("nisp needs a network with a convolution or a linear layer")
    last, name = mixing[-1]  # reads the final responses
    parts: list[Tensor] = []
    with pooled_inputs(graph, [name]) as taps:
        look: Any = lambda *_: parts.append(taps[0].detach().double().cpu())  # noqa: E731
        walk(graph, batches, look, labelled=False, progress=progress)
    features = torch.cat(parts)  # [N, F]
    if not bool(torch.isfinite(features).all()):
        raise ScoreError("the features that enter the last layer are NaN or infinite; check the images and the weights")
    flows = propagate(graph, last, infinite_feature_selection(features))
    importance = {name: torch.zeros(unit.width, dtype=torch.float64) for name, unit in graph.units.items()}
    for module, slots in reading_taps(graph).items():
        for slot in slots if module in flows else ():
            mine = flows[module][torch.from_numpy(slot.inputs)].sum(1)
            importance[slot.unit][torch.from_numpy(slot.channels)] += mine
    return len(features), importance


def infinite_feature_selection(features: Tensor) -> Tensor:
    """[F] importance of features [N, F]: row sums of (I - r A)^-1 - I (Roffo et al. 2015).

    A_ij = a max(sigma_i, sigma_j) + (1 - a) (1 - |Spearman's rank correlation of i and j|), with deviations sigma
    divided by the largest one, and r = 0.9 / the largest eigenvalue of A. Constant features correlate with all others.
    """
    from scipy.stats import rankdata

    values = features.double().numpy()
    deviation = values.std(0)
    moving = deviation > 0
    ranks = rankdata(values, axis=0)
    ranks = ranks - ranks.mean(0)
    ranks /= np.where(moving, np.linalg.norm(ranks, axis=0), 1.0)
    apart = np.where(moving[:, None] & moving, 1 - np.abs(ranks.T @ ranks), 0.0)
    deviation = deviation / max(float(deviation.max()), 1e-300)
    matrix = LOADING * np.maximum(deviation[:, None], deviation) + (1 - LOADING) * apart
    largest = float(np.linalg.eigvalsh(matrix)[-1])
    if largest <= 0:
        return torch.ones(len(matrix), dtype=torch.float64)
    identity = np.eye(len(matrix))
    sums = np.linalg.solve(identity - REACH / largest * matrix, np.ones(len(matrix))) - 1
    return torch.from_numpy(sums)


def propagate(graph: ChannelGraph, last: fx.Node, importance: Tensor) -> dict[str, Tensor]:
    """Reader -> importance [inputs] of each position of its input axis, summed over pixels and calls.

    Readers after `last`, the call that reads the final responses, are left out. Their importance [F] is shared equally
    among the positions of an image.
    """
    traced = graph.analysis.traced
    absolute = copy.deepcopy(graph.model).cpu().double().eval()  # in float64, because sums grow with every layer
    with torch.no_grad():
        for parameter in absolute.parameters():
            parameter.abs_()
    runner = GraphRunner(traced, absolute)
    nodes = runner.nodes[: runner.nodes.index(last) + 1]
    forms = {node: _linear_form(node, traced.modules) for node in nodes}
    replaced: dict[fx.Node, Compute] = {node: form for node, form in forms.items() if form is not None}
    seen: list[tuple[str, Tensor]] = []

    def read(node: fx.Node, name: str) -> Compute:
        def compute(x: Tensor, *rest: Any, **named: Any) -> Any:
            seen.append((name, x * 1))  # a tensor of its own: its gradient comes through this layer alone
            if node is last:
                return seen[-1][1]
            return getattr(runner, node.op)(node.target, (seen[-1][1], *rest), named)

        return compute

    readers = {reader.module for unit in graph.units.values() for reader in unit.readers}
    for node in runner.calls_of({*readers, traced.layer_of(last) or ""}):
        replaced[node] = read(node, traced.layer_of(node) or "")
    with evaluating(runner.module), generators_kept(), nothing_compiled(), torch.enable_grad():
        values: Values = {
            node: x.cpu().double().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
            for node, x in runner.bind(graph.example, copy=True).items()
        }
        for _ in runner.steps(values, nodes, replaced=replaced):
            pass
        final = channels_first(values[last], traced.module(last))
        shares = importance.to(final) / final.shape[2:].numel() / len(final)
        total = (final.flatten(2).sum(2) if final.ndim > 2 else final) @ shares
        gradients = torch.autograd.grad(total.sum(), [x for _, x in seen], allow_unused=True)
    flows: dict[str, Tensor] = {}
    for (name, x), gradient in zip(seen, gradients, strict=True):
        flow = torch.zeros_like(x) if gradient is None else gradient
        flow = channels_first(flow, traced.modules[name]).transpose(0, 1).flatten(1).sum(1).double().cpu()
        flows[name] = flows.get(name, torch.zeros(())) + flow
    return flows


def _linear_form(node: fx.Node, modules: Mapping[str, nn.Module]) -> Compute | None:
    """What stands in for a call that is not linear; None if the call stays."""
    module: Any = modules.get(str(node.target)) if node.op == "call_module" else None
    rule: Any = None
    if node.op == "call_module":
        rule = LAYERS.get(type(module))
    elif node.op == "call_function":
        rule = FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        rule = METHODS.get(str(node.target))
    if rule in LEFT_OUT or isinstance(module, nn.PReLU):
        return lambda x, *_, **__: x
    if rule is pointwise.combine:  # a gate: both factors get the importance of the product
        return _sum_of_tensors if len(node.all_input_nodes) > 1 and module is None else None
    name = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
    if "max" not in name.lower() or "pool" not in name.lower():
        return None
    # Each pixel of a window gets an equal share of what its maximum is worth (Yu et al. 2018).
    sides = next((int(c) for c in name if c.isdigit()), 2)
    if "adaptive" in name.lower():
        adaptive = getattr(F, f"adaptive_avg_pool{sides}d")
        return lambda x, size=None, *_, **__: adaptive(x, size if module is None else module.output_size)
    pool = getattr(F, f"avg_pool{sides}d")
    if module is not None:
        return lambda x: pool(x, module.kernel_size, module.stride, module.padding, module.ceil_mode)
    return lambda x, kernel_size, stride=None, padding=0, *_, **named: pool(
        x, kernel_size, stride, padding, named.get("ceil_mode", False)
    )


def _sum_of_tensors(*args: Any, **named: Any) -> Any:
    tensors = [x for x in (*args, *named.values()) if isinstance(x, Tensor) and x.is_floating_point()]
    return sum(tensors[1:], tensors[0])
