"""Layers whose slices cannot be taken for granted: found out before they are trusted.

A layer is opaque, and its channels stay, when taking slices of its weights would not be removing channels: it is
called twice, its parameters are computed or shared with another module, or it derives from a known layer with a
forward of its own that does not behave like one. The last is tried out on the layer itself: a copy with fewer
channels must give the outputs of the full layer whose other inputs are zeroed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
import torch
from torch import nn

from secateur.channels import layer_surgery, rules
from secateur.channels.rulebook import LAYERS, base_layer, parameters_are_plain
from secateur.channels.rules import MIXING, is_depthwise
from secateur.channels.traced import Traced
from secateur.channels.units import Indices


def opaque_layers(traced: Traced) -> dict[str, str]:
    """Leaf modules (and bare parameters) that must not be cut, with the reason in words."""
    tied = _tied_parameters(traced.model)
    bare = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr"}
    reasons: dict[str, str] = {}
    trials: dict[tuple[object, ...], bool] = {}
    for node in traced.graph.nodes:
        name = str(node.target)
        if node.op == "get_attr" and name in tied:
            reasons[name] = f"{name} is shared with {tied[name]}"
        if node.op != "call_module" or name in reasons:
            continue
        module = traced.module(node)
        own = [f"{name}.{p}" for p in module._parameters]
        reason = None
        if traced.calls[name] > 1 and any(True for _ in module.parameters()):
            reason = f"{name} is called {traced.calls[name]} times"
        elif shared := next((p for p in own if p in tied), None):
            reason = f"{shared} is shared with {tied[shared]}"
        elif used := next((p for p in own if p in bare), None):
            reason = f"{used} is also used outside of its layer"
        elif isinstance(module, (*MIXING, nn.modules.batchnorm._BatchNorm)) and not parameters_are_plain(module):
            reason = f"the weights of {name} are computed from other parameters"
        elif _overrides_forward(module) and not _behaves(module, traced.shapes[node.all_input_nodes[0].name], trials):
            reason = f"{type(module).__name__} {name} does not act like the layer that it derives from"
        if reason:
            reasons[name] = reason
    return reasons


def _tied_parameters(model: nn.Module) -> dict[str, str]:
    """Names of parameters that are one and the same tensor under two names -> the other name."""
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    return {
        name: next(other for other in same if other != name)
        for same in names.values()
        if len(same) > 1
        for name in same
    }


def _overrides_forward(module: nn.Module) -> bool:
    base = base_layer(module)
    if base is None or LAYERS.get(base) in (None, rules.norm_over_channels):
        return False
    return type(module).forward is not base.forward  # type: ignore[attr-defined]


def _behaves(module: nn.Module, shape: object, trials: dict[tuple[object, ...], bool]) -> bool:
    """Try the layer out on a small random input; layers of the same class and settings are tried once."""
    key = (type(module), module.extra_repr(), tuple(sorted((k, repr(v)) for k, v in module._modules.items())))
    if key not in trials:
        try:
            trials[key] = isinstance(shape, torch.Size) and _trial(module, len(shape))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            trials[key] = False
    return trials[key]


def _trial(module: nn.Module, dims: int) -> bool:
    whole = copy.deepcopy(module).cpu().double().eval()
    for hooks in (whole._forward_hooks, whole._forward_pre_hooks):
        hooks.clear()
    _randomise(whole.parameters())
    cut = copy.deepcopy(whole)
    width = _input_width(whole)
    groups = 1 if is_depthwise(whole) else int(getattr(whole, "groups", 1))
    keep = _every_other(width, groups)
    size = 15
    x = torch.randn(2, width, *(size,) * (dims - 2), dtype=torch.float64)
    if isinstance(whole, nn.Linear):
        x = x.movedim(1, -1)
    axis = x.dim() - 1 if isinstance(whole, nn.Linear) else 1
    outputs = np.arange(width)
    if isinstance(whole, MIXING) and not is_depthwise(whole):
        out_width = whole.out_features if isinstance(whole, nn.Linear) else whole.out_channels
        outputs = _all_but_first(int(out_width), groups)  # other ones than the inputs, or a skip would not show
        layer_surgery.shrink_mixing(cut, keep, outputs)
        with torch.no_grad():
            layer_surgery.zero_inputs(whole, np.setdiff1d(np.arange(width), keep))
    elif is_depthwise(whole):
        layer_surgery.shrink_depthwise(cut, keep)
        outputs = layer_surgery.depthwise_filters(whole, keep)
    else:
        layer_surgery.shrink_channelwise(cut, keep, width)
        outputs = keep
    expected = whole(x).index_select(axis, torch.from_numpy(outputs))
    got = cut(x.index_select(axis, torch.from_numpy(keep)))
    return bool(torch.allclose(got, expected, rtol=1e-9, atol=1e-9))


def _randomise(parameters: Iterable[nn.Parameter]) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def _every_other(width: int, groups: int) -> Indices:
    blocks = np.arange(width).reshape(groups, -1)
    return blocks[:, ::2].reshape(-1)


def _all_but_first(width: int, groups: int) -> Indices:
    blocks = np.arange(width).reshape(groups, -1)
    return blocks[:, min(1, blocks.shape[1] - 1) :].reshape(-1)


def _input_width(module: nn.Module) -> int:
    for name in ("in_channels", "in_features", "num_features"):
        width = getattr(module, name, None)
        if isinstance(width, int):
            return width
    return 6
