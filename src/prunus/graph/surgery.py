"""Carry out a plan: a copy of the model with slices of its layers, or the model itself with zeros."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from prunus.errors import PlanError
from prunus.graph.branches import remove_branch
from prunus.graph.multihead import Projection, computed_by_twin
from prunus.graph.norms import compensate
from prunus.graph.own_widths import WIDTH, give_own_widths
from prunus.graph.proxies import set_number
from prunus.graph.selection import InputMask, OutputMask, select, unselect
from prunus.graph.traced import CONVOLUTIONS, DEPTHWISE, MIXING, TRANSPOSED, is_depthwise, named_modules, submodules
from prunus.graph.units import Indices, Keep
from prunus.util.state import CONTAINERS, PLAIN, nothing_compiled

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.labels import Record
    from prunus.graph.plan import Plan
    from prunus.graph.replay import Slices

# How modules are copied, by default.
_COPYING = {
    name: getattr(nn.Module, name, None)
    for name in ("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__slots__")
}
_HOLDERS = (list, tuple, dict)
_PARTS = frozenset(("_parameters", "_buffers", "_modules"))


def carve(graph: ChannelGraph, record: Record, slices: Slices, *, share: bool = False) -> nn.Module:
    """A copy of the model with these slices of its layers.

    Args:
        graph: the graph of the model.
        record: what the replay of the plan saw, with the selections.
        slices: what is kept of each layer.
        share: layers that are not cut share their parameters with the original.
    """
    cut = [*slices.mixing, *slices.passing]
    old_layers = submodules(graph.model, cut)
    shared = [p for layer in ([graph.model] if share else old_layers.values()) for p in layer.parameters(recurse=share)]
    model = copy_sharing(graph.model, shared)  # what is cut anyway need not be copied first
    layers = submodules(model, {*cut, *record.selected})
    for name, selected in record.selected.items():
        if selected.everything:
            unselect(layers[name])
        else:
            select(layers[name], torch.from_numpy(selected.index), selected.dim, filled=selected.filled)
    for name, (inputs, outputs) in slices.mixing.items():
        shrink_mixing(layers[name], inputs, outputs, graph.analysis.traced.tensors_of(name))
    for name, (channels, width) in slices.passing.items():
        layer = layers[name]
        if is_depthwise(layer):
            shrink_depthwise(layer, channels)
        else:
            shrink_channelwise(layer, channels, width)
            if name in graph.analysis.record.norms:
                compensate(layer, len(channels), width, graph.analysis.record.norms[name][0])
    for name, entries in slices.parameters.items():
        shrink_parameter(model, name, entries)
    for origin, number in slices.numbers.items():
        if origin[1].startswith(WIDTH):
            give_own_widths(model.get_submodule(origin[0]))
        set_number(model, origin, number)
    for (owner, attribute), scale in slices.scales.items():
        give_own_widths(model.get_submodule(owner))
        setattr(model.get_submodule(owner), attribute, scale)
    for name in () if share else cut:  # parameters of cut layers that were not cut, such as a single slope
        pairs = zip(layers[name].parameters(recurse=False), old_layers[name].parameters(recurse=False), strict=True)
        for parameter, old in pairs:
            if parameter.data_ptr() == old.data_ptr():
                parameter.data = parameter.data.clone()
    for branch in slices.removed:
        remove_branch(model, branch)
    return model


def copy_sharing(model: nn.Module, parameters: Iterable[nn.Parameter] = ()) -> nn.Module:
    """A deep copy whose parameters are new ones, but share the memory of these with the original."""
    memo: dict[int, object] = {  # tensors that were made in inference mode cannot be trained, copies can
        id(p): nn.Parameter(p.detach().clone() if p.is_inference() else p.detach(), p.requires_grad) for p in parameters
    }
    modules = named_modules(model)
    buffers = [b for _, module in modules for b in module._buffers.values() if b is not None and _is_whole(b)]
    if len({b.untyped_storage().data_ptr() for b in buffers}) == len({id(b) for b in buffers}):
        memo |= {id(b): b.clone() for b in buffers}  # as deepcopy does it, in a fraction of the time
    memo |= computed_tensors(module for _, module in modules)
    try:
        for _, module in reversed(modules):  # children first, so that deepcopy finds them in the memo
            _copy_module(module, memo)
        twin = copy.deepcopy(model, memo)
        for parameter in twin.parameters():
            if not parameter.is_leaf:  # of a TorchScript module
                parameter.detach_().requires_grad_()
        return twin
    except Exception as error:  # whatever the attributes of the model raise
        raise PlanError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), and pruning makes a copy. "
            "Remove the attribute that cannot be copied, or give its class a __deepcopy__."
        ) from error


def computed_tensors(modules: Iterable[nn.Module]) -> dict[int, object]:
    """A memo for deepcopy of the tensors with a gradient function that a forward pass has left in attributes of these
    modules, because deepcopy refuses such tensors."""
    memo: dict[int, object] = {}
    for module in modules:
        found: list[Any] = []
        for name, value in module.__dict__.items():
            kind = type(value)
            if kind in PLAIN or (kind in CONTAINERS and not value):
                continue
            if name in _PARTS:
                found += value.values()
            elif isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, _HOLDERS) and _may_hold(value):
                found += tree_leaves(value)
        for value in found:
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return memo


def _is_whole(tensor: Tensor) -> bool:
    """Whether a tensor is a plain one that alone has its memory, so that a clone is a deep copy of it."""
    plain = type(tensor) is Tensor and not tensor.requires_grad and not tensor.is_inference() and not tensor.__dict__
    strided = plain and tensor.layout == torch.strided and tensor.is_contiguous() and tensor.numel() > 0
    return strided and tensor.untyped_storage().nbytes() == tensor.nbytes


def _may_hold(value: list[object] | tuple[object, ...] | dict[object, object]) -> bool:
    """Whether a value may contain tensors besides parameters and modules: not if it has plain values."""
    parts = value.values() if isinstance(value, dict) else value
    return not all(type(part) in PLAIN or isinstance(part, nn.Module) for part in parts)


def _copy_module(module: nn.Module, memo: dict[int, object]) -> None:
    """Put a copy of the module in the memo: what deepcopy makes of a class that says nothing of copies, in a third of
    the time."""
    kind = type(module)
    special = not kind.__setstate__.__module__.startswith("torch.nn.")  # torch.nn's own is for old files
    if special or id(module) in memo or any(getattr(kind, name, None) is not usual for name, usual in _COPYING.items()):
        return
    memo[id(module)] = twin = kind.__new__(kind)
    for key, value in module.__dict__.items():
        sort = type(value)
        if sort in PLAIN or (sort is tuple and PLAIN.issuperset(map(type, value))):
            twin.__dict__[key] = value
        elif sort in CONTAINERS and not value:
            twin.__dict__[key] = sort()
        elif sort is dict and key in _PARTS:
            twin.__dict__[key] = {name: copy.deepcopy(part, memo) for name, part in value.items()}
        else:
            twin.__dict__[key] = copy.deepcopy(value, memo)


# -- zeroing equals removing: dropped channels are zero where they are read


@contextmanager
def zeroed(graph: ChannelGraph, plan: Plan | Keep) -> Iterator[None]:
    """Inside the block, the traced model computes what the pruned model would compute.

    The channels that a reader drops are set to zero where they enter it, and where they enter norms over channels. Of
    queries and keys, dimensions are set to zero where they leave their layer. Of a branch that is removed, zeros are
    added. Weights are not touched. A model that is traced as a twin (`graph.model`) computes what its twin computes.

    Args:
        graph: the graph of the model.
        plan: which channels each unit keeps.
    """
    dropped: dict[str, list[Indices]] = {}  # reader -> positions on its input axis that it no longer reads
    keep = graph.keep_of(plan)
    for name, kept in keep.items():
        unit = graph.units[name]
        gone = np.ones(unit.width, dtype=bool)
        gone[np.asarray(kept, dtype=np.int64)] = False
        for reader in (*unit.readers, *unit.norms) if gone.any() else ():
            dropped.setdefault(reader.module, []).append(reader.inputs[gone[reader.channels]].reshape(-1))
    hooks: list[RemovableHandle] = []
    try:
        for name, parts in dropped.items():
            axis, _ = graph.analysis.record.norms.get(name, (None, ""))
            mask = InputMask(torch.from_numpy(np.concatenate(parts)), axis)
            hooks.append(graph.analysis.traced.modules[name].register_forward_pre_hook(mask, with_kwargs=True))
        for name, outputs in queries_and_keys(graph, keep).items():
            zeros = OutputMask(torch.from_numpy(outputs))
            hooks.append(graph.analysis.traced.modules[name].register_forward_hook(zeros))
        ends = [graph.model.get_submodule(branch.end) for branch in graph.removed_by(keep).branches]
        hooks += [end.register_forward_hook(lambda module, args, output: torch.zeros_like(output)) for end in ends]
        with nothing_compiled(), computed_by_twin(graph.model):  # compiled code does not see new hooks
            yield
    finally:
        for hook in hooks:
            hook.remove()


def queries_and_keys(graph: ChannelGraph, keep: Keep) -> dict[str, Indices]:
    """Layer -> its outputs that are dimensions of queries or keys that a plan drops. A product sums over them."""
    analysis, gone = graph.analysis, np.zeros(graph.analysis.channels, dtype=bool)
    if not analysis.record.products:
        return {}
    for name, kept in keep.items():
        channels = graph.grouped.channels[name]
        gone[np.delete(channels, np.asarray(kept, dtype=np.int64))] = True
    labels = np.unique(np.concatenate(analysis.record.products))
    labels = labels[gone[analysis.of_label[labels]]]
    found = {name: np.flatnonzero(np.isin(written, labels)) for name, written in analysis.record.writes.items()}
    return {name: outputs for name, outputs in found.items() if len(outputs)}


# -- make a layer smaller: keep slices of its tensors. The layer, which must be part of a copy, is changed.


def shrink_mixing(
    layer: nn.Module, inputs: Indices, outputs: Indices, tensors: Sequence[str] = ("weight", "bias")
) -> None:
    """Keep these inputs and outputs of a layer that mixes channels, in this order.

    Further tensors of a conv or linear layer, such as those from which a mask or a weight norm computes the weight, are
    cut like the weight if they have its shape, and otherwise if they have an entry for each output. A module that calls
    a function on a weight of its own is cut too, in these `tensors`; attributes that say how wide it is follow.
    """
    if isinstance(layer, Projection):
        layer.keep(inputs, outputs)
        return
    weight: Tensor = layer.weight.detach()  # type: ignore[operator]

    def cut(tensor: Tensor) -> Tensor:
        if isinstance(layer, CONVOLUTIONS):
            return _conv_weight(layer, tensor.detach(), inputs, outputs)
        return _block(tensor.detach(), outputs, inputs)

    if isinstance(layer, MIXING):
        wide = int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)
        computing = layer._modules.get("parametrizations")
        for owner in (layer, *(() if computing is None else computing.modules())):
            for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
                if tensor is not None and tensor.dim() > 1 and tensor.shape == weight.shape:
                    _replace(owner, name, cut(tensor))
                elif _has_entries(name, tensor, wide):
                    _slice(owner, name, outputs)
            _check_norms(owner)
    else:
        for name in tensors:
            tensor = getattr(layer, name, None)
            if tensor is not None and tensor.shape == weight.shape:
                _replace(layer, name, cut(tensor))
            elif _has_entries(name, tensor, weight.size(0)):
                _slice(layer, name, outputs)
    if "weight" in vars(layer):  # a hook computes it before each call
        layer.weight = cut(weight)
    if isinstance(layer, CONVOLUTIONS):
        layer.in_channels, layer.out_channels = len(inputs), len(outputs)
        if layer.groups > 1:  # a group with one channel left does not make it depthwise
            setattr(layer, DEPTHWISE, False)
        return
    for width, kept, ends in ((weight.size(1), inputs, "in"), (weight.size(0), outputs, "out")):
        for name in (f"{ends}_channels", f"{ends}_features"):
            if getattr(layer, name, None) == width:
                setattr(layer, name, len(kept))


def _check_norms(owner: nn.Module) -> None:
    """ValueError if the norms of a weight norm no longer fit its directions: torch would read beyond them."""
    known = owner._parameters
    for name, direction in known.items():
        norm = known.get({"original1": "original0"}.get(name, f"{name.removesuffix('_v')}_g"))
        if norm is None or direction is None or norm is direction or norm.dim() != direction.dim():
            continue
        if any(n not in (1, d) for n, d in zip(norm.shape, direction.shape, strict=True)):
            raise ValueError(f"norms {list(norm.shape)} do not fit directions {list(direction.shape)}")


def _conv_weight(layer: Any, weight: Tensor, inputs: Indices, outputs: Indices) -> Tensor:
    """Weights have shape [out, in / groups, ...]; those of transposed convolutions [in, out / groups, ...]."""
    rows, columns = (inputs, outputs) if isinstance(layer, TRANSPOSED) else (outputs, inputs)
    wide = layer.out_channels if isinstance(layer, TRANSPOSED) else layer.in_channels
    groups, per_group = layer.groups, wide // layer.groups
    if groups == 1:
        return _block(weight, rows, columns)
    row_parts = rows.reshape(groups, -1)
    column_parts = columns.reshape(groups, -1)
    owner = np.arange(groups)[:, None]
    rows_per_group = weight.size(0) // groups
    if not ((row_parts // rows_per_group == owner).all() and (column_parts // per_group == owner).all()):
        raise ValueError(f"channels would cross the {groups} groups of the convolution")
    parts = [_block(weight, r, c % per_group) for r, c in zip(row_parts, column_parts, strict=True)]
    return torch.cat(parts)


def depthwise_filters(layer: Any, channels: Indices) -> Indices:
    """The filters of a depthwise convolution that belong to these input channels."""
    multiplier = layer.out_channels // layer.in_channels
    filters: Indices = (channels[:, None] * multiplier + np.arange(multiplier)).reshape(-1)
    return filters


def shrink_depthwise(layer: Any, channels: Indices) -> None:
    """Keep these input channels of a depthwise convolution, with all of their filters."""
    filters = depthwise_filters(layer, channels)
    # Weights have shape [in * multiplier, 1, ...]; those of transposed convolutions [in, multiplier, ...].
    _slice(layer, "weight", channels if isinstance(layer, TRANSPOSED) else filters)
    _slice(layer, "bias", filters)
    layer.in_channels = layer.groups = len(channels)
    setattr(layer, DEPTHWISE, True)  # even if only one channel is left
    layer.out_channels = len(filters)


def shrink_channelwise(layer: nn.Module, channels: Indices, width: int) -> None:
    """Keep these channels of a layer whose tensors have one entry per channel (batch norm, PReLU)."""
    for name, tensor in [*layer._parameters.items(), *layer._buffers.items()]:
        if _has_entries(name, tensor, width):
            _slice(layer, name, channels)
    if isinstance(layer, nn.GroupNorm) and layer.num_groups > 1:  # groups are removed as a whole
        layer.num_groups = len(channels) * layer.num_groups // width
    for attribute in ("num_features", "num_parameters", "num_channels"):
        if getattr(layer, attribute, None) == width:
            setattr(layer, attribute, len(channels))


def shrink_parameter(model: nn.Module, name: str, entries: Mapping[int, Indices]) -> None:
    """Keep these entries of a standalone parameter or buffer, axis by axis."""
    owner_name, _, attribute = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    tensor: Tensor = getattr(owner, attribute)
    value = tensor.detach()
    for axis, index in entries.items():
        value = value.index_select(axis, _t(index, tensor.device))
    _replace(owner, attribute, value)


def _has_entries(name: str, tensor: Tensor | None, width: int) -> bool:
    """Whether a tensor of a layer, other than a selection, has one entry for each of `width` channels."""
    return tensor is not None and tensor.dim() > 0 and tensor.size(0) == width and not name.startswith("prunus_")


def _slice(layer: nn.Module, name: str, index: Indices) -> None:
    tensor = getattr(layer, name, None)
    if tensor is not None:
        _replace(layer, name, tensor.detach().index_select(0, _t(index, tensor.device)))


def _block(weight: Tensor, rows: Indices, columns: Indices) -> Tensor:
    """Rows and columns of a weight. The axis that loses most goes first; nothing is copied if all are kept."""
    weight = weight.detach()
    for dim, index in sorted(((0, rows), (1, columns)), key=lambda cut: len(cut[1]) / max(1, weight.size(cut[0]))):
        if len(index) != weight.size(dim) or not np.array_equal(index, np.arange(len(index))):
            weight = weight.index_select(dim, _t(index, weight.device))
    return weight


def _replace(layer: nn.Module, name: str, value: Tensor) -> None:
    """Give a tensor of a layer another value. It stays the same tensor, which a list of the model may hold too."""
    old: Tensor = getattr(layer, name)
    value = value.clone() if value.data_ptr() == old.data_ptr() else value
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if old.dim() == dims and old.is_contiguous(memory_format=layout) and not old.is_contiguous():
            value = value.contiguous(memory_format=layout)
    old.data = value


def _t(index: Indices, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(index)).to(device)
