"""Code that takes the width of its input for the width of its heads: `B, N, C = x.shape` ... `reshape(B, N, C)`.

With fewer heads the two widths differ, and no number of the module can say so. So a pruned attention gets a subclass of
its class, in whose forward each use of such a size asks the module first:

    x.transpose(1, 2).reshape(B, N, self.prunus_width(3, C))

`prunus_width` returns the attribute `prunus_width_3` if the module has it, else the size. Likewise `prunus_scale`,
where the code leaves the scale of queries by keys to PyTorch, which computes it from the size of a head. Everything
else is the text of the original forward. While a network is recorded, its attentions have such classes too, and the
size at each use is a `Number`: so the label rules find which channels it counts, plans say how many are left, and
loading sets it again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from torch import nn

from prunus.graph.proxies import Number, Scale, value_of
from prunus.graph.rewriting import names_in_forward, rewritten
from prunus.graph.traced import CONVOLUTIONS, MIXING, named_modules

WIDTH, SCALE = "prunus_width_", "prunus_scale_"
PATH = "prunus_path"  # attribute of a module that is being recorded: its name in the network
_KINDS = ("features", "channels")
_ATTENTION = frozenset(("softmax", "scaled_dot_product_attention", "attn_drop"))  # what code of an attention names


class _Uses(ast.NodeTransformer):
    """Asks the module at each use of these names."""

    def __init__(self, names: set[str]) -> None:
        self.names, self.count = names, 0

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.names or not isinstance(node.ctx, ast.Load):
            return node
        ask = ast.Attribute(ast.Name("self", ast.Load()), "prunus_width", ast.Load())
        self.count += 1
        return ast.copy_location(ast.Call(ask, [ast.Constant(self.count - 1), node], []), node)


class _Scales(ast.NodeTransformer):
    """Asks the module for the scale at each product of queries and keys that has none."""

    count = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        query = node.args[0] if node.args else given.get("query")
        if name != "scaled_dot_product_attention" or {"scale", None} & given.keys() or not isinstance(query, ast.Name):
            return node
        ask = ast.Attribute(ast.Name("self", ast.Load()), "prunus_scale", ast.Load())
        scale = ast.Call(ask, [ast.Constant(self.count), ast.Name(query.id, ast.Load())], [])
        self.count += 1
        node.keywords.append(ast.keyword("scale", scale))
        return node


def _prunus_scale(self: nn.Module, use: int, query: Any) -> Any:
    """The scale of a product: the module's own, if pruning gave it one; None is that of PyTorch."""
    attribute = f"{SCALE}{use}"
    own, path = getattr(self, attribute, None), getattr(self, PATH, None)
    size = getattr(value_of(query), "shape", (0,))[-1]
    if path is None or not size:
        return own
    scale = Scale(size**-0.5 if own is None else own)
    scale.origin = path, attribute
    return scale


def _prunus_width(self: nn.Module, use: int, size: Any) -> Any:
    """The number of channels at a use of a size: the module's own, if pruning gave it one."""
    attribute = f"{WIDTH}{use}"
    own, path = getattr(self, attribute, None), getattr(self, PATH, None)
    if own is not None or path is None:
        return size if own is None else own
    width = value_of(size)
    layers = [child for child in self.children() if isinstance(child, MIXING)]
    ends = {getattr(layer, f"{end}_{kind}", 0) for layer in layers for end in ("in", "out") for kind in _KINDS}
    if type(width) is not int or width < 2 or width not in ends:
        return size
    number = Number(width)
    number.origin = (path, attribute, -1)
    return number


def _names_of_channels(tree: ast.FunctionDef, last: bool) -> set[str]:
    """Names that are given the number of channels of a tensor, and no other value: the last size, or the second of
    four in front of convolutions."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Tuple):
            continue
        size = node.value.func if isinstance(node.value, ast.Call) and not node.value.args else node.value
        is_size = isinstance(size, ast.Attribute) and size.attr == ("size" if size is not node.value else "shape")
        names = node.targets[0].elts
        if is_size and len(names) in (3, 4) and all(isinstance(name, ast.Name) for name in names):
            found.add(names[-1 if last else 1].id)  # type: ignore[attr-defined]
    return {name for name in found if stored.count(name) == 1}


def with_own_widths(module: nn.Module) -> type[nn.Module] | None:
    """The class with which a module can have widths of its own; None if its code cannot be read, or needs no such."""
    kind: Any = type(module)
    if hasattr(kind, "prunus_width"):
        return kind  # type: ignore[no-any-return]
    if _ATTENTION.isdisjoint(names_in_forward(kind)):
        return None
    linear = any(isinstance(child, nn.Linear) for child in module.children())
    convolves = any(isinstance(child, CONVOLUTIONS) for child in module.children())
    return _asking(kind, linear) if linear or convolves else None


@lru_cache(maxsize=256)
def _asking(kind: type[nn.Module], last: bool) -> type[nn.Module] | None:
    def edit(function: ast.FunctionDef) -> bool:
        names = _names_of_channels(function, last)
        uses, scales = _Uses(names), _Scales()
        function.body = [scales.visit(uses.visit(statement)) for statement in function.body]
        return bool(names or scales.count)

    return rewritten(kind, edit, (_restored, kind, last), prunus_width=_prunus_width, prunus_scale=_prunus_scale)


def give_own_widths(module: nn.Module) -> None:
    """Let a module have widths of its own, if its code can be read."""
    kind = with_own_widths(module)
    if kind is not None:
        module.__class__ = kind


@contextmanager
def own_widths_known(model: nn.Module, is_layer: Callable[[nn.Module], bool]) -> Iterator[None]:
    """Inside the block, sizes that attentions take from their inputs are Numbers where they are used."""
    changed: list[tuple[nn.Module, type[nn.Module]]] = []
    try:
        for name, module in named_modules(model):
            if module._modules and not type(module).__module__.startswith("torch.nn.") and not is_layer(module):
                kind = type(module)
                if with_own_widths(module) is not None:
                    changed.append((module, kind))
                    give_own_widths(module)
                    vars(module)[PATH] = name
        yield
    finally:
        for module, kind in changed:
            module.__class__ = kind
            del vars(module)[PATH]


def _restored(kind: Any, last: bool) -> nn.Module:
    """An empty module of the rewritten class, when one is copied or unpickled."""
    found = _asking(kind, last) or kind
    return found.__new__(found)  # type: ignore[no-any-return]
