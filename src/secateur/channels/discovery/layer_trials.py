"""Layers whose weights must not be cut, found before they are trusted.

A layer is opaque, and its channels are kept, if taking slices of its weights would not remove channels: its parameters
are computed or shared with another module, or it derives from a known layer but has a forward of its own that behaves
differently. The last case is tried on the layer itself: a copy with fewer channels must give the
outputs of the full layer whose other inputs are zeroed.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, fx, nn

from secateur.channels import layer_surgery
from secateur.channels.layer_kinds import DEPTHWISE, MIXING, is_depthwise
from secateur.channels.rules.layers import channelwise, instance_norm, norm_over_channels, prelu
from secateur.channels.rules.rulebook import base_layer
from secateur.channels.rules.tables import LAYERS
from secateur.channels.selection import DIM, INDEX, selection_of, unselect
from secateur.channels.traced import Traced, named_modules
from secateur.channels.units import Indices

_Trials = dict[tuple[object, ...], bool]

# What a subclass may define without computing anything else, and attributes that every module has.
_HARMLESS = frozenset(
    (
        *("__module__", "__doc__", "__init__", "__annotations__", "__constants__", "__static_attributes__"),
        *("__firstlineno__", "__repr__", "extra_repr", "reset_parameters", "__qualname__", "__parameters__"),
    )
)
_INTERNAL = frozenset((*vars(nn.Module()), DEPTHWISE, DIM)) - {"forward"}
_STATISTICS = frozenset(("running_mean", "running_var", "num_batches_tracked", INDEX))


def opaque_layers(traced: Traced) -> dict[str, str]:
    """Called modules and bare parameters that must not be cut -> reason in words."""
    tied = _tied_parameters(traced.model)
    bare = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr"}
    reasons: dict[str, str] = {}
    trials: _Trials = {}
    for node in traced.graph.nodes:
        name = str(node.target)
        if node.op == "get_attr" and name in tied:
            reasons[name] = f"{name} is shared with {tied[name]}"
        elif node.op == "call_module" and name not in reasons:
            reason = _shared(traced, node, tied, bare) or _unlike_its_class(traced, node, trials)
            if reason:
                reasons[name] = reason
    return reasons


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


def _unlike_its_class(traced: Traced, node: fx.Node, trials: _Trials) -> str | None:
    """Why a called module does not compute what its class computes, if it does not."""
    name, module = str(node.target), traced.module(node)
    if hasattr(module, "parametrizations") or not _parameters_are_plain(module):
        return f"the weights of {name} are computed from other parameters"
    if _is_changed(module) and not _behaves(module, traced.shapes[node.all_input_nodes[0].name], trials):
        hooked = " with its hooks" if _has_hooks(module) else ""
        return f"{type(module).__name__} {name}{hooked} does not act like the layer it derives from"
    return None


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
    if _has_hooks(module) or any(callable(getattr(type(module), name, None)) for name in module.__dict__):
        return True
    if type(module) is base:
        return False
    derived = itertools.takewhile(lambda kind: kind is not base, type(module).__mro__)
    return any(name not in _HARMLESS for kind in derived for name in vars(kind))


def _has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks of the user run with the module."""
    own = 1 if selection_of(module) is not None else 0
    return len(module._forward_pre_hooks) > own or bool(module._forward_hooks)


def _behaves(module: nn.Module, shape: object, trials: _Trials) -> bool:
    """Try the layer on a small random input. Layers of the same class, settings and hooks are tried once."""
    key = _settings(module)
    if key is None:
        return _passes(module, shape)
    if key not in trials:
        trials[key] = _passes(module, shape)
    return trials[key]


def _passes(module: nn.Module, shape: object) -> bool:
    try:
        return isinstance(shape, torch.Size) and _trial(module, len(shape))
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return False


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


@torch.no_grad()
def _trial(module: nn.Module, dims: int) -> bool:
    whole = copy.deepcopy(module).cpu().double().eval()
    unselect(whole)
    _randomise(whole.parameters())
    cut = copy.deepcopy(whole)
    width = _input_width(whole)
    groups = 1 if is_depthwise(whole) else int(getattr(whole, "groups", 1))
    keep = _every_other(width, groups)
    x = torch.randn(2, width, *(15,) * (dims - 2), dtype=torch.float64)
    if isinstance(whole, nn.Linear):
        x = x.movedim(1, -1)
    axis = x.dim() - 1 if isinstance(whole, nn.Linear) else 1
    outputs = _cut_both(whole, cut, keep, groups)
    expected = whole(x).index_select(axis, torch.from_numpy(outputs))
    got = cut(x.index_select(axis, torch.from_numpy(keep)))
    return bool(torch.allclose(got, expected, rtol=1e-9, atol=1e-9))


def _cut_both(whole: nn.Module, cut: nn.Module, keep: Indices, groups: int) -> Indices:
    """Remove all inputs but `keep` from `cut`, and zero them in `whole`. Returns the outputs that `cut` has left."""
    width = _input_width(whole)
    if is_depthwise(whole):
        layer_surgery.shrink_depthwise(cut, keep)
        return layer_surgery.depthwise_filters(whole, keep)
    if isinstance(whole, MIXING):
        out_width = whole.out_features if isinstance(whole, nn.Linear) else whole.out_channels
        outputs = _all_but_first(int(out_width), groups)  # not the same as the inputs, or a skip would not show
        layer_surgery.shrink_mixing(cut, keep, outputs)
        zeroed = layer_surgery.without_inputs(whole, np.setdiff1d(np.arange(width), keep))
        whole.weight.data = zeroed
        return outputs
    base = base_layer(whole)
    if base is not None and LAYERS[base] in (channelwise, prelu, instance_norm):  # others are not cut
        layer_surgery.shrink_channelwise(cut, keep, width)
    return keep


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
