"""Norms and means over channels that lose channels: they divide by the number of channels that there were.

Channels that are gone count as zeros. With C of C0 channels left, and s = C / C0,

    mean = s m
    variance = s (v + (1 - s) m^2)

where m and v are the mean and the variance of the channels that are left: what the norm of the original network has if
the other channels are zero where it reads them. So it is exact, and such a norm costs about what it did.

A layer norm, RMS norm or group norm of one group gets a subclass of its class (`compensate`). A mean in the code of a
module, `x.mean(dim)`, as in the global response norms of ConvNeXt V2, first becomes a module (`Mean`): in a twin of the
network that shares its parameters, the module's class has another forward, with `self.prunus_mean_0(x, dim)`.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from prunus.graph.rewriting import code_of, forward_of, names_in_forward, rewritten, subclass_runs_code
from prunus.graph.traced import named_modules

KEPT, WHOLE, AXIS = "prunus_kept", "prunus_whole", "prunus_axis"  # attributes of a norm that has lost channels
_MEAN = "prunus_mean_"
_FORM = frozenset(("dim", "ndim", "dtype", "device", "is_cuda", "is_contiguous"))
_NORMS = tuple(getattr(nn, name) for name in ("LayerNorm", "RMSNorm") if hasattr(nn, name))


def can_be_compensated(module: nn.Module | None) -> bool:
    """Whether a module is a norm whose statistics follow from those of the channels that are left."""
    if isinstance(module, _NORMS):
        simple = len(module.normalized_shape) == 1
    else:
        simple = isinstance(module, Mean) or (isinstance(module, nn.GroupNorm) and module.num_groups == 1)
    kind: Any = type(module)
    return simple and not subclass_runs_code(kind) and not _looks_at_input(kind)


@lru_cache(maxsize=256)
def _looks_at_input(kind: Any) -> bool:
    """Whether the code of a norm, which another forward replaces, may choose its path by the size or the values of its
    input: trials could miss a path. It may ask for the form of its input."""
    forward = forward_of(kind)
    if forward is _forward or getattr(forward, "__module__", "").startswith(("torch.nn.", "prunus.")):
        return False
    tree = code_of(forward)
    if tree is None:
        return True
    nodes = list(ast.walk(tree))
    stored = (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    inputs = {*forward.__code__.co_varnames[1:2], *stored}
    tests = [part for node in nodes if isinstance(node, ast.If | ast.IfExp | ast.While) for part in ast.walk(node.test)]
    forms = [part.value for part in tests if isinstance(part, ast.Attribute) and part.attr in _FORM]
    return any(isinstance(part, ast.Name) and part.id in inputs and part not in forms for part in tests)


def is_on_second_axis(module: nn.Module | None) -> bool:
    """Whether the channels are on axis 1 of images, sequences and vectors alike: in PyTorch's own group norm, but not
    in a subclass that permutes its input first."""
    plain = getattr(type(module), "forward", None) is nn.GroupNorm.forward
    return plain or (isinstance(module, nn.GroupNorm) and getattr(module, AXIS, -1) > 0)


def compensate(module: Any, kept: int, whole: int, axis: int) -> None:
    """Let a norm, whose weight and bias are cut, have `kept` of its `whole` channels along `axis`, which is
    counted from the end if it is negative. A norm that has lost channels before keeps dividing by its first number."""
    setattr(module, WHOLE, getattr(module, WHOLE, whole))
    setattr(module, KEPT, kept)
    setattr(module, AXIS, axis)
    if isinstance(module, nn.GroupNorm):
        module.num_channels = kept
    elif isinstance(module, _NORMS):
        module.normalized_shape = (kept,)
    if not isinstance(module, Mean):
        module.__class__ = _compensated(type(module))


def _share(module: Any) -> float:
    """The share of the channels that are left."""
    return float(getattr(module, KEPT, 1)) / float(getattr(module, WHOLE, 1))


class Mean(nn.Module):
    """`x.mean(...)` as a module."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mean; with fewer channels, the sum over those that are left, divided by the original number."""
        mean = x.mean(*args, **kwargs)
        return mean * _share(self) if hasattr(self, KEPT) else mean


def _forward(self: Any, x: Tensor) -> Tensor:
    """The norm of what is left, with the statistics of all."""
    axis, share = getattr(self, AXIS), _share(self)
    over = list(range(1, x.dim())) if isinstance(self, nn.GroupNorm) else [axis]
    if isinstance(self, _NORMS[1:]):
        square = share * x.square().mean(over, keepdim=True)
        out = x * torch.rsqrt(square + (torch.finfo(x.dtype).eps if self.eps is None else self.eps))
    else:
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        variance = share * (variance + (1 - share) * mean.square())
        out = (x - share * mean) * torch.rsqrt(variance + self.eps)
    shape = [1] * x.dim()
    shape[axis] = -1
    out = out if self.weight is None else out * self.weight.view(shape)
    bias = getattr(self, "bias", None)
    return out if bias is None else out + bias.view(shape)


def _compensated(kind: type[nn.Module]) -> type[nn.Module]:
    known: Any = kind
    return kind if vars(kind).get("forward") is _forward else _subclass(known)


@lru_cache(maxsize=256)
def _subclass(kind: type[nn.Module]) -> type[nn.Module]:
    def reduce(self: nn.Module, protocol: Any) -> Any:
        return _restored, (kind,), self.__dict__

    body = {"forward": _forward, "__reduce_ex__": reduce, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**body, "__qualname__": kind.__qualname__})


def _restored(kind: Any) -> nn.Module:
    """An empty module of a subclass, when one is copied or unpickled."""
    found = _subclass(kind)
    return found.__new__(found)


# -- means in the code of modules


class _Means(ast.NodeTransformer):
    """Calls a module for each mean."""

    count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr != "mean":
            return node
        owner = called.value
        if isinstance(owner, ast.Name) and owner.id in ("self", "np", "numpy"):
            return node
        args = node.args if isinstance(owner, ast.Name) and owner.id == "torch" else [owner, *node.args]
        module = ast.Attribute(ast.Name("self", ast.Load()), f"{_MEAN}{self.count}", ast.Load())
        self.count += 1
        return ast.copy_location(ast.Call(module, args, node.keywords), node)


@lru_cache(maxsize=256)
def _with_means(kind: type[nn.Module]) -> tuple[type[nn.Module], int] | None:
    count = 0

    def edit(function: ast.FunctionDef) -> bool:
        nonlocal count
        means = _Means()
        function.body = [means.visit(statement) for statement in function.body]
        count = means.count
        return count > 0

    found = rewritten(kind, edit, (_with_means_restored, kind))
    return None if found is None else (found, count)


def _with_means_restored(kind: Any) -> nn.Module:
    found = _with_means(kind)
    made = kind if found is None else found[0]
    return made.__new__(made)  # type: ignore[no-any-return]


def has_means(module: nn.Module) -> bool:
    """Whether the code of a module has means that can become modules."""
    kind: Any = type(module)
    return "mean" in names_in_forward(kind) and _with_means(kind) is not None


def modules_with_means(model: nn.Module) -> list[nn.Module]:
    """The modules of a network, other than PyTorch's, whose code has means that can become modules."""
    own = (module for _, module in named_modules(model) if not type(module).__module__.startswith("torch.nn."))
    return [module for module in own if "forward" not in vars(module) and has_means(module)]


def give_means(module: nn.Module) -> None:
    """Let modules compute the means in the code of a module."""
    kind: Any = type(module)
    found = _with_means(kind)
    if found is not None:
        module.__class__ = found[0]
        for number in range(found[1]):
            module.add_module(f"{_MEAN}{number}", Mean())
