"""Importance of the classifier's inputs, propagated back through the graph (NISP, Yu et al. 2018).

Yu et al. bound the change of the final responses by s_l = |W_(l+1)|' s_(l+1), layer by layer: activations pass the
importance on, and so do shortcuts. This is the gradient of sum(s x final responses) in a network with |weights| whose
activations are left out. So one backward pass of such a copy gives the importance at every layer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from prunus.errors import ScoreError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.rules import layers, pointwise
from prunus.graph.rules.rulebook import FUNCTIONS, LAYERS, METHODS
from prunus.graph.runner import Compute, GraphRunner, Values
from prunus.graph.traced import CONVOLUTIONS
from prunus.scoring.gradients import pooled_inputs
from prunus.scoring.passes import walk
from prunus.scoring.taps import channels_first, reading_taps
from prunus.util.batches import Batches
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept, nothing_compiled

LOADING = 0.5  # share of the deviations in infinite feature selection; the rest is that of the correlations
REACH = 0.9  # r x the largest eigenvalue of A
LEFT_OUT = (pointwise.elementwise, pointwise.softmax, layers.norm_over_channels, layers.group_norm)


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
    for module, tap in reading_taps(graph).items():
        for slot in tap.slots if module in flows else ():
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

    Readers after the last layer are left out.

    Args:
        graph: The traced network.
        last: The call that reads the final responses.
        importance: [F] of the final responses; each position of an image has an equal share.
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
