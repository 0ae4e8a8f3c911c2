"""Layers whose weights must not be cut, found before they are trusted.

A layer is opaque, and its channels are kept, if taking slices of its weights would not remove channels: its parameters
are computed or shared with another module, or it derives from a known layer but has a forward of its own that behaves
differently. The last case is tried on the layer itself (`cut_trials`).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx, nn

from secateur.base.module_state import module_state_kept
from secateur.channels.discovery.cut_trials import Cuts, try_cuts
from secateur.channels.layer_kinds import DEPTHWISE, MIXING
from secateur.channels.rules.layers import norm_over_channels
from secateur.channels.rules.rulebook import base_layer
from secateur.channels.rules.tables import LAYERS
from secateur.channels.selection import DIM, FILLED, INDEX, selection_of
from secateur.channels.traced import Traced, named_modules

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
