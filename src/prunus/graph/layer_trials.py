"""Layers whose weights must not be cut, found before they are trusted.

A layer is opaque, and its channels are kept, if taking slices of its weights would not remove channels: its parameters
are computed or shared with another module, or it derives from a known layer but has a forward of its own that behaves
differently. The last case is tried on the layer itself (`cut_trials`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, fx, nn

from prunus.graph import layer_surgery
from prunus.graph.labels import Rule
from prunus.graph.rules.layers import channelwise, instance_norm, norm_over_channels, prelu
from prunus.graph.rules.regrouping import group_norm
from prunus.graph.rules.rulebook import base_layer
from prunus.graph.rules.tables import LAYERS
from prunus.graph.selection import DIM, FILLED, INDEX, selection_of, unselect
from prunus.graph.traced import CONVOLUTIONS, DEPTHWISE, MIXING, Traced, batched_dims, is_depthwise, named_modules
from prunus.graph.units import Indices
from prunus.util.state import module_state_kept

# Try on a layer itself which channels it may lose.

Cuts = Literal["both", "outputs", "nothing"]  # what a layer may lose: inputs and outputs, only outputs, or nothing


@torch.no_grad()
def try_cuts(module: nn.Module, dims: int) -> Cuts:
    """What a layer may lose, tried on random inputs with so many dimensions. The layer is not changed."""
    try:
        whole = copy.deepcopy(module).cpu().double().eval()
        unselect(whole)
        _randomise(whole.parameters())
        x = _random_input(whole, dims)
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return "nothing"
    if _agrees(whole, x, _kept_inputs(whole)):
        return "both"
    mixes = isinstance(whole, MIXING) and not is_depthwise(whole)
    return "outputs" if mixes and _agrees(whole, x, np.arange(_input_width(whole))) else "nothing"


def _agrees(whole: nn.Module, x: Tensor, keep: Indices) -> bool:
    """Whether a copy that reads only `keep`, and has fewer outputs, computes what the whole layer computes without the
    weights of the other inputs."""
    axis = x.dim() - 1 if isinstance(whole, nn.Linear) else 1
    weight = whole.weight.data if isinstance(whole, MIXING) else None
    try:
        cut = copy.deepcopy(whole)
        outputs = _cut(cut, keep)
        if isinstance(whole, MIXING) and not is_depthwise(whole):
            gone = np.setdiff1d(np.arange(_input_width(whole)), keep)
            whole.weight.data = layer_surgery.without_inputs(whole, gone) if len(gone) else whole.weight.data
        expected = whole(x).index_select(axis, torch.from_numpy(outputs))
        got = cut(x.index_select(axis, torch.from_numpy(keep)))
        return bool(torch.allclose(got, expected, rtol=1e-9, atol=1e-9))
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return False
    finally:
        if weight is not None:
            whole.weight.data = weight


def _cut(layer: nn.Module, keep: Indices) -> Indices:
    """Remove all inputs but `keep`, and some outputs. Returns the outputs that are left."""
    if is_depthwise(layer):
        outputs = layer_surgery.depthwise_filters(layer, keep)
        layer_surgery.shrink_depthwise(layer, keep)
        return outputs
    if isinstance(layer, MIXING):
        out_width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        outputs = _all_but_first(int(out_width), _groups(layer))  # not as the inputs, or a skip would not show
        layer_surgery.shrink_mixing(layer, keep, outputs)
        return outputs
    if _rule_of(layer) in (channelwise, prelu, instance_norm, group_norm):  # others are not cut
        layer_surgery.shrink_channelwise(layer, keep, _input_width(layer))
    return keep


def _kept_inputs(layer: nn.Module) -> Indices:
    """Every other input of each group, or every other group of a group norm."""
    width = _input_width(layer)
    if isinstance(layer, nn.GroupNorm):
        return np.arange(width).reshape(layer.num_groups, -1)[::2].reshape(-1)
    return np.arange(width).reshape(_groups(layer), -1)[:, ::2].reshape(-1)


def _all_but_first(width: int, groups: int) -> Indices:
    blocks = np.arange(width).reshape(groups, -1)
    return blocks[:, min(1, blocks.shape[1] - 1) :].reshape(-1)


def _groups(layer: Any) -> int:
    return 1 if is_depthwise(layer) else int(getattr(layer, "groups", 1))


def _rule_of(module: nn.Module) -> Rule | None:
    base = base_layer(module)
    return None if base is None else LAYERS.get(base)


def _randomise(parameters: Iterable[nn.Parameter]) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters:
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def _random_input(layer: nn.Module, dims: int) -> Tensor:
    """Two random images, large enough for the kernel of a convolution."""
    side = 15
    if isinstance(layer, CONVOLUTIONS):
        dims = batched_dims(layer)  # with a batch dimension, also for layers that are called without one
        sides = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
        side = max(dilation * (kernel - 1) + 1 + 2 * stride for kernel, dilation, stride in sides)
    x = torch.randn(2, _input_width(layer), *(side,) * (dims - 2), dtype=torch.float64)
    return x.movedim(1, -1) if isinstance(layer, nn.Linear) else x


def _input_width(module: nn.Module) -> int:
    for name in ("in_channels", "in_features", "num_features", "num_channels"):
        width = getattr(module, name, None)
        if isinstance(width, int):
            return width
    return 6


_Trials = dict[tuple[object, ...], Cuts]

# What a subclass may define without computing anything else, and attributes that every module has.
_HARMLESS = frozenset(
    (
        *("__module__", "__doc__", "__init__", "__annotations__", "__constants__", "__static_attributes__"),
        *("__firstlineno__", "__repr__", "extra_repr", "reset_parameters", "__qualname__", "__parameters__"),
    )
)
_INTERNAL = frozenset((*vars(nn.Module()), DEPTHWISE, DIM, FILLED)) - {"forward"}
_STATISTICS = frozenset(("running_mean", "running_var", "num_batches_tracked", INDEX))


def try_layers(traced: Traced) -> tuple[dict[str, str], frozenset[str]]:
    """Called modules and bare parameters that must not be cut -> reason in words, and layers that must keep all of
    their inputs, but not their outputs."""
    tied = _tied_parameters(traced.model)
    # A node without users was only asked for its type or device.
    bare = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr" and node.users}
    reasons: dict[str, str] = {}
    reading_all: set[str] = set()
    trials: _Trials = {}
    for node in traced.graph.nodes:
        name = str(node.target)
        if node.op == "get_attr" and name in tied:
            reasons[name] = f"{name} is shared with {tied[name]}"
        elif node.op == "call_module" and name not in reasons:
            reason = _shared(traced, node, tied, bare) or _computed(traced, node)
            cuts = "both" if reason else _cuts(traced, node, trials)
            if cuts == "outputs":
                reading_all.add(name)
            elif cuts == "nothing":
                module = traced.module(node)
                hooked = " with its hooks" if _has_hooks(module) else ""
                reason = f"{type(module).__name__} {name}{hooked} does not act like the layer it derives from"
            if reason:
                reasons[name] = reason
    return reasons, frozenset(reading_all)


def _shared(traced: Traced, node: fx.Node, tied: dict[str, str], bare: set[str]) -> str | None:
    """Why the parameters of a called module serve other purposes too, if they do."""
    name, module = str(node.target), traced.module(node)
    names = (*dict(module._parameters.items()), *dict(module._buffers.items()))  # also those of TorchScript modules
    for own in (f"{name}.{tensor}" for tensor in names):
        if own in tied:
            return f"{own} is shared with {tied[own]}"
        if own in bare:
            return f"{own} is also used outside of its layer"
    return None


def _computed(traced: Traced, node: fx.Node) -> str | None:
    """Why the weights of a called module cannot be cut, if they cannot."""
    module = traced.module(node)
    if hasattr(module, "parametrizations") or not _parameters_are_plain(module):
        return f"the weights of {node.target} are computed from other parameters"
    return None


def _cuts(traced: Traced, node: fx.Node, trials: _Trials) -> Cuts:
    """What a called module may lose, as far as its own code is concerned."""
    module = traced.module(node)
    if not _is_changed(module):
        return "both"
    cuts = _tried(traced, node, trials)
    fillable = not module._forward_pre_hooks or (selection_of(module) is not None and not _has_hooks(module))
    calls = (call for call in traced.graph.nodes if call.op == "call_module" and call.target == node.target)
    return cuts if cuts != "outputs" or (fillable and all(call.args for call in calls)) else "nothing"


def _parameters_are_plain(module: nn.Module) -> bool:
    """Whether weight and bias of a layer are parameters of the module itself, not computed (weight norm)."""
    if not isinstance(module, (*MIXING, nn.modules.batchnorm._BatchNorm)):
        return True
    return all(
        isinstance(module._parameters.get(name), Tensor) or getattr(module, name, None) is None
        for name in ("weight", "bias")
    )


def _tied_parameters(model: nn.Module) -> dict[str, str]:
    """Name of a parameter that two modules share -> its other name. One module under two names shares nothing."""
    names: dict[int, list[str]] = {}
    for prefix, module in named_modules(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    return {
        name: next(other for other in same if other != name)
        for same in names.values()
        if len(same) > 1
        for name in same
    }


def _is_changed(module: nn.Module) -> bool:
    """Whether a layer may compute something else than the class with a rule that it derives from."""
    base = base_layer(module)
    if base is None or LAYERS.get(base) in (None, norm_over_channels):
        return False
    own = module.__dict__.keys() - _INTERNAL  # the attributes of every module hide no method
    if _has_hooks(module) or any(callable(getattr(type(module), name, None)) for name in own):
        return True
    if type(module) is base:
        return False
    derived = itertools.takewhile(lambda kind: kind is not base, type(module).__mro__)
    return any(name not in _HARMLESS for kind in derived for name in vars(kind))


def _has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks of the user run with the module."""
    own = 1 if selection_of(module) is not None else 0
    return len(module._forward_pre_hooks) > own or bool(module._forward_hooks)


def _tried(traced: Traced, node: fx.Node, trials: _Trials) -> Cuts:
    """Try the layer on a small random input. Layers of the same class, settings and hooks are tried once."""
    module, shape = traced.module(node), traced.shapes[node.all_input_nodes[0].name]
    if not isinstance(shape, torch.Size):
        return "nothing"
    key = _settings(module)
    if key is None:
        with module_state_kept(traced.model):  # the hooks of a copy may write to the model
            return try_cuts(module, len(shape))
    if key not in trials:
        trials[key] = try_cuts(module, len(shape))
    return trials[key]


def _settings(module: nn.Module) -> tuple[object, ...] | None:
    """All that the behaviour of a layer may depend on, besides its weights; None if it cannot be put in words."""
    if _has_hooks(module) or any(name not in _STATISTICS for name in module._buffers):
        return None
    found: list[object] = [type(module)]
    for name, value in module.__dict__.items():
        if name in _INTERNAL:
            continue
        parts = value if isinstance(value, tuple | list) else (value,)
        if not all(isinstance(part, bool | int | float | str | type(None)) for part in parts):
            return None
        found.append((name, repr(value)))
    found += [(name, None if p is None else p.shape) for name, p in module._parameters.items()]
    for name, child in module._modules.items():
        inner = None if child is None else _settings(child)
        if inner is None:
            return None
        found.append((name, inner))
    return tuple(found)
