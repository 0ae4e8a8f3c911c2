"""Layers whose weights must not be cut, found before they are trusted.

A layer is opaque, and its channels are kept, if taking slices of its weights would not remove channels: its parameters
are computed or shared with another module, or it derives from a known layer but has a forward of its own that behaves
differently. The last case is tried on the layer itself.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, fx, nn

from prunus.graph import surgery
from prunus.graph.multihead import Projection, reason_against
from prunus.graph.rules import layers
from prunus.graph.rules.rulebook import LAYERS, base_layer
from prunus.graph.selection import DIM, FILLED, INDEX, SHOWN, selection_of, unselect
from prunus.graph.traced import CONVOLUTIONS, DEPTHWISE, MIXING, Traced, batched_dims, is_depthwise, named_modules
from prunus.graph.units import Indices
from prunus.util.state import module_state_kept

Cuts = Literal["both", "outputs", "nothing"]  # what a layer may lose: inputs and outputs, only outputs, or nothing
_Trials = dict[tuple[object, ...], Cuts]

# What a subclass may define without computing anything else, and attributes that every module has.
_HARMLESS = frozenset(
    (
        *("__module__", "__doc__", "__init__", "__annotations__", "__constants__", "__static_attributes__"),
        *("__firstlineno__", "__repr__", "extra_repr", "reset_parameters", "__qualname__", "__parameters__"),
    )
)
_INTERNAL = frozenset((*vars(nn.Module()), DEPTHWISE, DIM, FILLED, SHOWN)) - {"forward"}
_NOT_WRITTEN_OUT = "written out, it computes something else here, or its calls depend on values"
_STATISTICS = frozenset(("running_mean", "running_var", "num_batches_tracked", INDEX))


def try_layers(traced: Traced) -> tuple[dict[str, str], frozenset[str]]:
    """Layers that must not be cut as usual.

    Returns:
        Called modules and standalone parameters that must not be cut -> reason, and the layers that must keep all of
        their inputs, but not their outputs.
    """
    tied = _tied_parameters(traced.model)
    # Parameters that code uses outside of a layer. A node without users was only asked for its type or device.
    standalone = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr" and node.users}
    reasons: dict[str, str] = {}
    reading_all: set[str] = set()
    trials: _Trials = {}
    for node in traced.graph.nodes:
        name = str(node.target)
        if node.op == "get_attr" and name in tied:
            reasons[name] = f"{name} is shared with {tied[name]}"
        elif node.op == "call_module" and name not in reasons:
            module = traced.module(node)
            reason = _not_its_own(name, module, tied, standalone)
            if getattr(type(module), "forward", None) is nn.MultiheadAttention.forward:
                reason = f"{type(module).__name__} {name} is not followed: {reason_against(module) or _NOT_WRITTEN_OUT}"
            cuts = "both" if reason else _cuts(traced, node, trials)
            if cuts == "outputs":
                reading_all.add(name)
            elif cuts == "nothing":
                hooked = " with its hooks" if _has_hooks(module) else ""
                reason = f"{type(module).__name__} {name}{hooked} does not act like the layer it derives from"
                if type(module).__module__.startswith("torch.ao."):
                    reason = f"{name} trains for int8, with the range of all of its weights; prune before prepare_qat"
                elif _computes_weights(module):
                    reason = (
                        f"the weights of {name} are computed from all of its parameters together; make them plain "
                        "weights first, with torch.nn.utils.parametrize.remove_parametrizations, for example"
                    )
            if reason:
                reasons[name] = reason
        elif traced.is_layer_function(node) and (name := traced.functional[node.name]) in traced.computed:
            cuts = _cuts(traced, node, trials)
            if cuts == "outputs":
                reading_all.add(name)
            elif cuts == "nothing":
                kind = type(traced.module(node)).__name__
                reasons[name] = f"{kind} {name} computes weights of an output from those of others, or from a width"
    return reasons, frozenset(reading_all)


def _tied_parameters(model: nn.Module) -> dict[str, str]:
    """Name of a parameter that two modules share -> its other name. One module under two names shares nothing."""
    names: dict[int, list[str]] = {}
    for prefix, module in named_modules(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{prefix}.{name}" if prefix else name)
    shared = [same for same in names.values() if len(same) > 1]
    return {name: next(other for other in same if other != name) for same in shared for name in same}


def _not_its_own(name: str, module: nn.Module, tied: dict[str, str], standalone: set[str]) -> str | None:
    """Why the parameters of a called module serve other purposes too, or are computed from others, if they are."""
    tensors = [*dict(module._parameters.items()), *dict(module._buffers.items())]  # also of TorchScript modules
    owner = name
    if isinstance(module, Projection):
        owner, tensors = name.rpartition(".")[0], list(module.tensors)
    for tensor in tensors:
        full = f"{owner}.{tensor}".lstrip(".")
        if full in tied:
            return f"{full} is shared with {tied[full]}"
        if full in standalone:
            return f"{full} is also used outside of its layer"
    if _computes_weights(module) and (not isinstance(module, MIXING) or is_depthwise(module)):
        return f"the weights of {name} are computed from other parameters"
    return None


def _computes_weights(module: nn.Module) -> bool:
    """Whether weight or bias are computed from other parameters, as by a weight norm."""
    if hasattr(module, "parametrizations"):
        return True
    if isinstance(module, Projection):
        return False
    return isinstance(module, (*MIXING, nn.modules.batchnorm._BatchNorm)) and not all(
        isinstance(module._parameters.get(tensor), Tensor) or getattr(module, tensor, None) is None
        for tensor in ("weight", "bias")
    )


# -- layers that may behave differently


def _cuts(traced: Traced, node: fx.Node, trials: _Trials) -> Cuts:
    """What a called module may lose, as far as its own code is concerned.

    It is tried on a small random input; layers of the same class, settings and hooks are tried once.
    """
    module, shape = traced.module(node), traced.shapes[node.all_input_nodes[0].name]
    tensors = traced.computed.get(traced.layer_of(node) or "", ())
    if isinstance(module, Projection):
        return "both" if module.has_own_columns else "outputs"
    if not tensors and not _is_changed(module):
        return "both"
    if not isinstance(shape, torch.Size):
        return "nothing"
    key = _settings(module)
    if key is None:
        with module_state_kept(traced.model):  # the hooks of a copy may write to the model
            cuts = _try_cuts(module, len(shape), tensors)
    else:
        if key not in trials:
            trials[key] = _try_cuts(module, len(shape), tensors)
        cuts = trials[key]
    # A layer that keeps all of its inputs gets a selection in front of it that fills in zeros.
    hooks = module._forward_pre_hooks.values()
    computing = [hook for hook in hooks if type(hook).__module__.startswith("torch.nn.utils.")]  # they see no inputs
    fillable = len(hooks) == len(computing) + (selection_of(module) is not None)
    calls = (call for call in traced.graph.nodes if traced.layer_of(call) == traced.layer_of(node))
    return cuts if cuts != "outputs" or (fillable and all(call.args for call in calls)) else "nothing"


def _is_changed(module: nn.Module) -> bool:
    """Whether a layer may compute something else than the class with a rule that it derives from."""
    base = base_layer(module)
    if base is None or LAYERS.get(base) in (None, layers.norm_over_channels):
        return False
    added = module.__dict__.keys() - _INTERNAL  # the attributes of every module hide no method
    if _has_hooks(module) or any(callable(getattr(type(module), name, None)) for name in added):
        return True
    derived = itertools.takewhile(lambda kind: kind is not base, type(module).__mro__)
    return any(name not in _HARMLESS for kind in derived for name in vars(kind))


def _has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks of the user run with the module."""
    of_selection = 1 if selection_of(module) is not None else 0
    return len(module._forward_pre_hooks) > of_selection or bool(module._forward_hooks)


def _settings(module: nn.Module) -> tuple[object, ...] | None:
    """All that the behaviour of a layer may depend on, besides its weights; None if that cannot be listed."""
    if _has_hooks(module) or any(name not in _STATISTICS for name in module._buffers):
        return None
    settings: list[object] = [type(module)]
    for name, value in module.__dict__.items():
        if name in _INTERNAL:
            continue
        parts = value if isinstance(value, tuple | list) else (value,)
        if not all(isinstance(part, bool | int | float | str | type(None)) for part in parts):
            return None
        settings.append((name, repr(value)))
    settings += [(name, None if p is None else p.shape) for name, p in module._parameters.items()]
    for name, child in module._modules.items():
        inner = None if child is None else _settings(child)
        if inner is None:
            return None
        settings.append((name, inner))
    return tuple(settings)


# -- the trial


@torch.no_grad()
def _try_cuts(module: nn.Module, dims: int, tensors: Sequence[str]) -> Cuts:
    """What a layer may lose, tried on random inputs with so many dimensions. The layer is not changed.

    A layer of the user's own computes its weights from these `tensors`.
    """
    try:
        whole = _copied(module).cpu().double().eval()
        unselect(whole)
        generator = torch.Generator().manual_seed(0)
        for parameter in whole.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        side, width = 15, _input_width(whole, tensors)
        if isinstance(whole, CONVOLUTIONS):  # large enough for its kernel
            dims = batched_dims(whole)  # with a batch dimension, also for layers that are called without one
            sides = zip(whole.kernel_size, whole.dilation, whole.stride, strict=True)
            side = max(dilation * (kernel - 1) + 1 + 2 * stride for kernel, dilation, stride in sides)
        x = torch.randn(2, width, *(side,) * (dims - 2), generator=generator, dtype=torch.float64)
        x = x.movedim(1, -1) if isinstance(whole, nn.Linear) else x
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return "nothing"
    # Every other input of each group, or every other group of a group norm; then the rest. What depends on the largest
    # weight, for example, works with one of them, but not with both.
    groups = np.arange(width).reshape(1 if tensors else _groups(whole), -1)
    halves = [groups[:, ::2].reshape(-1), groups[:, 1::2].reshape(-1)]
    if isinstance(whole, nn.GroupNorm):
        groups = groups.reshape(whole.num_groups, -1)
        halves = [groups[::2].reshape(-1), groups[1::2].reshape(-1)]
    if all(_agrees(whole, x, half, part, tensors) for part, half in enumerate(halves) if len(half)):
        return "both"
    everything = np.arange(width)
    mixes = _mixes(whole, tensors) and all(_agrees(whole, x, everything, part, tensors) for part in (0, 1))
    return "outputs" if mixes else "nothing"


def _mixes(layer: nn.Module, tensors: Sequence[str]) -> bool:
    return bool(tensors) or (isinstance(layer, MIXING) and not is_depthwise(layer))


def _agrees(whole: nn.Module, x: Tensor, keep: Indices, part: int, tensors: Sequence[str]) -> bool:
    """Whether a copy that reads only `keep`, and has a part of the outputs, computes what the whole layer computes with
    zeros in the place of its other inputs."""
    axis = x.dim() - 1 if isinstance(whole, nn.Linear) else 1
    try:
        cut = _copied(whole)
        outputs = _cut(cut, keep, part, tensors)
        if _mixes(whole, tensors):
            gone = np.setdiff1d(np.arange(_input_width(whole, tensors)), keep)
            x = x.index_fill(axis, torch.from_numpy(gone), 0)
        expected = whole(x).index_select(axis, torch.from_numpy(outputs))
        got = cut(x.index_select(axis, torch.from_numpy(keep)))
        return bool(torch.allclose(got, expected, rtol=1e-9, atol=1e-9))
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return False


def _copied(layer: nn.Module) -> nn.Module:
    """A deep copy, also of tensors that hooks have computed or kept. A method as a hook is copied with its object."""
    owners = [getattr(hook, "__self__", None) for hook in layer._forward_hooks.values()]
    modules = [layer, *(module for owner in owners if isinstance(owner, nn.Module) for module in owner.modules())]
    return copy.deepcopy(layer, surgery.computed_tensors(modules))


def _cut(layer: Any, keep: Indices, part: int, tensors: Sequence[str]) -> Indices:
    """Remove all inputs but `keep`, and a part of the outputs. Returns the outputs that are left."""
    if is_depthwise(layer):
        outputs = surgery.depthwise_filters(layer, keep)
        surgery.shrink_depthwise(layer, keep)
        return outputs
    if _mixes(layer, tensors):
        # All but the first two of each group, or these: not as the inputs, or a skip would not show.
        out_width = layer.weight.size(0) if tensors else getattr(layer, "out_features", 0) or layer.out_channels
        blocks = np.arange(int(out_width)).reshape(1 if tensors else _groups(layer), -1)
        first = min(2, blocks.shape[1] // 2)
        outputs = (blocks[:, first:] if part == 0 or not first else blocks[:, :first]).reshape(-1)
        # A layer of the user's own may use others behind it, which the label rules follow.
        surgery.shrink_mixing(layer, keep, outputs, [*layer._parameters, *layer._buffers])
        return outputs
    base = base_layer(layer)
    rule = None if base is None else LAYERS.get(base)
    if rule in (layers.channelwise, layers.prelu, layers.instance_norm, layers.group_norm):  # others are not cut
        surgery.shrink_channelwise(layer, keep, _input_width(layer, tensors))
    return keep


def _groups(layer: Any) -> int:
    return 1 if is_depthwise(layer) else int(getattr(layer, "groups", 1))


def _input_width(module: Any, tensors: Sequence[str]) -> int:
    if tensors:
        return int(module.weight.size(1))
    for name in ("in_channels", "in_features", "num_features", "num_channels"):
        width = getattr(module, name, None)
        if isinstance(width, int):
            return width
    return 6
