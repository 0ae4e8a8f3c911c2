"""An ONNX graph while it becomes a torch.fx graph of plain torch calls and layers.

Each value of the file is a constant (a tensor) or a node of the torch.fx graph. What depends on constants alone is
computed at once. So is arithmetic on shapes: every node knows the shape of its result, by a run on torch's meta device,
and the number of images is a large prime there. A size that is a multiple of the prime counts images, and stays
computed; any other size is a number.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from prunus.errors import ModelError

NUM_IMAGES = 10007  # stands for the number of images; no axis of a network is a multiple of this prime
Value = Any  # a Tensor (constant), an fx.Node, or a tuple of them


def counts_images(size: int) -> bool:
    """Whether a size is a multiple of the number of images."""
    return size > 0 and size % NUM_IMAGES == 0


def is_node(value: Value) -> bool:
    """Whether a value is computed from the network's input."""
    return isinstance(value, fx.Node)


def tensor_of(value: Value) -> Tensor:
    """A constant, or a tensor without content that has the shape and type of a node's result."""
    tensor: Tensor = value.meta["value"] if is_node(value) else value
    return tensor


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value, with NUM_IMAGES for the number of images."""
    return tuple(tensor_of(value).shape)


@dataclass
class GraphBuilder:
    """The torch.fx graph as far as it has been built."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)  # its layers and parameters, by name
    values: dict[str, Value] = field(default_factory=dict)  # name of a value in the file -> constant or node
    batch: int | None = None  # number of images that the file is made for; None: any
    _names: dict[int, str] = field(default_factory=dict)  # id of a constant -> its name in the file
    _stored: dict[tuple[Any, ...], str] = field(default_factory=dict)  # a constant, or weights and settings -> name
    _parameters: dict[tuple[Any, ...], nn.Parameter] = field(default_factory=dict)  # by the memory of a constant
    _count: fx.Node | None = None

    def set(self, name: str, value: Value) -> None:
        """A value of the file. The names of constants are kept for layers and parameters."""
        self.values[name] = value
        if isinstance(value, Tensor):
            self._names.setdefault(id(value), name)

    def call(self, function: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Value:
        """A call of a function of torch, or of a tensor's method by its name.

        It is recorded, or carried out at once if all its arguments are constants.
        """
        run = getattr(Tensor, function) if isinstance(function, str) else function
        if not any(is_node(leaf) for leaf in tree_leaves((args, kwargs))):
            return run(*args, **kwargs)
        args, kwargs = tree_map(lambda v: self.attribute(v) if isinstance(v, Tensor) else v, (args, kwargs))
        record: Any = self.graph.call_method if isinstance(function, str) else self.graph.call_function
        return self._with_value(record(function, args, kwargs), run)

    def layer(self, name: str, layer: nn.Module, x: Value) -> Value:
        """A call of a layer, which is stored by this name, or by a similar one if that is taken."""
        if not is_node(x):
            return layer(x)
        for part, parameter in list(layer._parameters.items()):  # what the file uses twice is one parameter
            if parameter is not None:
                memory = (parameter.data_ptr(), parameter.shape, parameter.stride())
                layer._parameters[part] = self._parameters.setdefault(memory, parameter)
        key = (type(layer), tuple(id(parameter) for parameter in layer.parameters()), repr(layer))
        if key not in self._stored:
            self._stored[key] = self._store(name, layer)
        target = self._stored[key]
        stored = self.root.get_submodule(target)
        tensors = (*stored.named_parameters(), *stored.named_buffers())
        empty = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
        node = self.graph.call_module(target, (x,))
        return self._with_value(node, lambda value: functional_call(stored, empty, (value,)))

    def sizes(self, sizes: Sequence[int]) -> list[Any]:
        """Sizes as arguments of a call: those that count images are computed from the input."""
        return [self._number_of_images(size // NUM_IMAGES) if counts_images(size) else size for size in sizes]

    def _number_of_images(self, times: int) -> fx.Node:
        if self._count is None:
            image = next(node for node in self.graph.nodes if node.op == "placeholder")
            with self.graph.inserting_after(image):
                self._count = self.graph.call_method("size", (image, 0))
            self._count.meta["value"] = NUM_IMAGES
        return self._count if times == 1 else self.call(operator.mul, self._count, times)

    @staticmethod
    def _with_value(node: fx.Node, run: Callable[..., Any]) -> fx.Node:
        """The node, with the result that its call has on tensors without content."""
        args, kwargs = tree_map(lambda leaf: leaf.meta["value"] if is_node(leaf) else leaf, (node.args, node.kwargs))
        with torch.device("meta"), torch.no_grad():
            node.meta["value"] = run(*args, **kwargs)
        return node

    def attribute(self, tensor: Tensor) -> fx.Node:
        """A constant as a parameter of the network, by its name in the file; integers become a buffer."""
        if tensor.dtype in (torch.int64, torch.int32) and bool(
            (tensor % NUM_IMAGES == 0).logical_and(tensor > 0).any()
        ):
            raise ModelError("the number of images is used as a value")
        key = ("attribute", id(tensor))
        if key not in self._stored:
            kept = nn.Parameter(tensor) if tensor.is_floating_point() else tensor
            self._stored[key] = self._store(self._names.get(id(tensor), "constant"), kept)
            self.values.setdefault(f" {id(tensor)}", tensor)  # so that no other tensor gets its id
        node = self.graph.get_attr(self._stored[key])
        node.meta["value"] = torch.empty_like(tensor, device="meta")
        return node

    def _store(self, name: str, part: nn.Module | Tensor) -> str:
        """Keep a layer or tensor under a name; returns the name that it got."""
        owner, path = self.root, dotted(name).split(".")
        for word in path[:-1]:
            if not isinstance(owner._modules.get(word), nn.Module):
                if hasattr(owner, word):
                    return self._store(name.replace(".", "_"), part)
                owner.add_module(word, nn.Module())
            owner = owner._modules[word]  # type: ignore[assignment]
        free, number = path[-1], 2
        while hasattr(owner, free):
            free, number = f"{path[-1]}_{number}", number + 1
        if isinstance(part, nn.Module):
            owner.add_module(free, part)
        elif isinstance(part, nn.Parameter):
            owner.register_parameter(free, part)
        else:
            owner.register_buffer(free, part)
        return ".".join([*path[:-1], free])

    def reshape(self, x: Value, target: Sequence[int]) -> Value:
        """`x` in another shape, by flatten and unflatten, so that no size of the original network is left in the graph.

        A file says [N, 116, 28, 28] -> [N, 2, 58, 28, 28], with numbers. Here it becomes `unflatten(x, 1, (2, -1))`:
        the axes that a group of axes becomes are found by their products, and the number of images, or else the largest
        size, is left open. So the number of images is free, and channels can be removed.
        """
        shape = shape_of(x)
        if math.prod(shape) != math.prod(target):
            raise ModelError(f"{list(shape)} cannot be reshaped to {list(target)}")
        if 0 in shape:
            return self.call(torch.reshape, x, tuple(target))
        place = 0  # of the group among the axes of what has been made so far
        for before, after in _axis_groups(shape, target):
            if before != after:
                if len(before) > 1:
                    x = self.call(torch.flatten, x, place, place + len(before) - 1)
                if not before:
                    for _ in after:  # axes of size 1 alone
                        x = self.call(torch.unsqueeze, x, place)
                elif not after:
                    x = self.call(torch.squeeze, x, place)
                elif len(after) > 1:
                    images = [axis for axis, size in enumerate(after) if counts_images(size)]
                    free = images[0] if images else after.index(max(after))
                    sizes = tuple(-1 if axis == free else size for axis, size in enumerate(after))
                    x = self.call(torch.unflatten, x, place, sizes)
            place += len(after)
        return x


def _axis_groups(shape: Sequence[int], target: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The fewest axes, from the left, that become axes of the same product: (2, 6, 5) -> (12, 5) is (2, 6) -> (12,)
    and (5,) -> (5,)."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(shape) and j < len(target):
        first, second = i, j
        left, right = shape[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * shape[i], i + 1
            else:
                right, j = right * target[j], j + 1
        groups.append((tuple(shape[first:i]), tuple(target[second:j])))
    rest = tuple(shape[i:]), tuple(target[j:])  # axes of size 1
    if any(rest):
        last = groups.pop() if groups else ((), ())
        groups.append((last[0] + rest[0], last[1] + rest[1]))
    return groups


def dotted(name: str) -> str:
    """A name of the file as the dotted name of a parameter: `/layer1/layer1.0/conv1` is layer1.0.conv1."""
    words: list[str] = []
    for part in name.split("/"):
        if words and part.startswith(f"{words[-1]}."):
            words.pop()
        words += [part] if part else []
    path = ".".join(re.sub(r"\W", "_", word) for word in ".".join(words).split(".") if word) or "_"
    return f"_{path}" if path[0].isdigit() else path


@dataclass(frozen=True)
class Operation:
    """One operation of the file: its inputs as values, its attributes, and where its calls go."""

    builder: GraphBuilder
    kind: str  # its ONNX name, such as Conv
    name: str  # its own name in the file
    opset: int  # of the file
    inputs: Sequence[Value]  # None where an optional one is left out
    attributes: Mapping[str, Any]  # that the file gives
    num_outputs: int = 1
    once: Sequence[bool] = ()  # whether the value of each input is read by this operation only

    @property
    def x(self) -> Value:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return shape_of(self.x)

    def input(self, place: int) -> Value | None:
        """An input, or None if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def constant(self, place: int) -> Tensor:
        """An input that must not depend on the images."""
        value = self.input(place)
        if not isinstance(value, Tensor):
            raise ModelError(f"its input {place + 1} is computed from the images; it must be a constant")
        return value

    def numbers(self, name: str, place: int, default: Any = None) -> Any:
        """Numbers that are an attribute or, in newer opsets, an input; a list of them, or one number."""
        if name in self.attributes:
            return self.attributes[name]
        value = self.input(place)
        if value is None or (isinstance(value, Tensor) and not value.numel()):
            return default
        return self.constant(place).tolist()

    def call(self, function: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Value:
        """A call of a function of torch, or of a method."""
        return self.builder.call(function, *args, **kwargs)

    def layer(self, layer: nn.Module, x: Value, *, source: Tensor | None = None, **tensors: Tensor | None) -> Value:
        """A call of a layer in eval mode, with these tensors as its parameters and buffers.

        It is called as its weight in the file (`source`), without `.weight`, or else as the operation.
        """
        for part, tensor in tensors.items():
            if part in layer._buffers:
                layer._buffers[part] = tensor
            else:
                layer._parameters[part] = None if tensor is None else nn.Parameter(tensor)
        weight = tensors["weight"] if source is None else source
        assert weight is not None
        name, own = self.builder._names.get(id(weight), ""), self.name.removesuffix(f"/{self.kind}")
        if name.endswith((".weight", "/weight", "_weight")):
            name = name[: -len(".weight")]
        elif own.startswith("/") or not name:
            name = own
        return self.builder.layer(name, layer.eval(), x)
