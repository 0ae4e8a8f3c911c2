"""An ONNX graph while it becomes a torch.fx graph of plain torch calls and layers.

Each value of the file is a constant (a tensor) or a node of the torch.fx graph. What depends on constants alone is
computed at once. So is arithmetic on shapes: every node knows the shape of its result, by a run on torch's meta device,
and the number of images is a large prime there. A size that is a multiple of the prime counts images, and stays
computed; any other size is a number.
"""

from __future__ import annotations

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

IMAGES = 10007  # stands for the number of images; no axis of a network is a multiple of this prime
Value = Any  # a Tensor (constant), an fx.Node, or a tuple of them


def counts_images(size: int) -> bool:
    """Whether a size is a multiple of the number of images."""
    return size > 0 and size % IMAGES == 0


def is_node(value: Value) -> bool:
    """Whether a value is computed from the network's input."""
    return isinstance(value, fx.Node)


@dataclass
class Importing:
    """The torch.fx graph as far as it has been built.

    Attributes:
        graph: Its calls.
        root: Its layers and parameters, by name.
        values: Name of a value in the file -> constant or node.
        uses: Name of a value in the file -> number of operations that read it.
        batch: Number of images that the file is made for; None if it takes any number.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    values: dict[str, Value] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    batch: int | None = None
    _names: dict[int, str] = field(default_factory=dict)  # id of a constant -> its name in the file
    _layers: dict[tuple[Any, ...], str] = field(default_factory=dict)  # weights and settings -> layer
    _parameters: dict[tuple[Any, ...], nn.Parameter] = field(default_factory=dict)  # by the memory of a constant
    _count: fx.Node | None = None

    def constant(self, name: str, tensor: Tensor) -> None:
        """A constant of the file, whose name is kept."""
        self.values[name] = tensor
        self._names.setdefault(id(tensor), name)

    def name_of(self, tensor: Tensor) -> str:
        """The name of a constant in the file; empty if it was computed."""
        return self._names.get(id(tensor), "")

    # -- calls

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """A call of a function of torch: recorded, or carried out at once if all its arguments are constants."""
        if not any(is_node(leaf) for leaf in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        args, kwargs = tree_map(self._as_argument, (args, kwargs))
        return self._recorded(self.graph.call_function(function, args, kwargs), function, args, kwargs)

    def method(self, name: str, x: Value, *args: Any) -> Value:
        """A call of a method of a tensor."""
        if not any(is_node(leaf) for leaf in tree_leaves((x, args))):
            return getattr(x, name)(*args)
        x, args = tree_map(self._as_argument, (x, args))
        node = self.graph.call_method(name, (x, *args))
        return self._recorded(node, lambda tensor, *rest: getattr(tensor, name)(*rest), (x, *args), {})

    def layer(self, name: str, layer: nn.Module, x: Value) -> Value:
        """A call of a layer, which is stored by this name, or by a similar one if that is taken."""
        if not is_node(x):
            return layer(x)
        for part, parameter in list(layer._parameters.items()):  # what the file uses twice is one parameter
            if parameter is not None:
                memory = (parameter.data_ptr(), parameter.shape, parameter.stride())
                layer._parameters[part] = self._parameters.setdefault(memory, parameter)
        key = (type(layer), tuple(id(parameter) for parameter in layer.parameters()), repr(layer))
        if key not in self._layers:
            self._layers[key] = self._store(name, layer)
        target = self._layers[key]
        stored = self.root.get_submodule(target)
        node = self.graph.call_module(target, (x,))
        empty = {
            n: torch.empty_like(t, device="meta") for n, t in (*stored.named_parameters(), *stored.named_buffers())
        }
        return self._recorded(node, lambda value: functional_call(stored, empty, (value,)), (x,), {})

    def number_of_images(self, times: int = 1) -> fx.Node:
        """The number of images as a value of the graph, times a number."""
        if self._count is None:
            image = next(node for node in self.graph.nodes if node.op == "placeholder")
            with self.graph.inserting_after(image):
                self._count = self.graph.call_method("size", (image, 0))
            self._count.meta["value"] = IMAGES
        return self._count if times == 1 else self.call(operator.mul, self._count, times)

    def sizes(self, sizes: Sequence[int]) -> list[Any]:
        """Sizes as arguments of a call: those that count images are computed."""
        return [self.number_of_images(size // IMAGES) if counts_images(size) else size for size in sizes]

    def _recorded(self, node: fx.Node, function: Callable[..., Any], args: Any, kwargs: Any) -> fx.Node:
        values = tree_map(lambda leaf: leaf.meta["value"] if is_node(leaf) else leaf, (args, kwargs))
        with torch.device("meta"), torch.no_grad():
            node.meta["value"] = function(*values[0], **values[1])
        return node

    # -- parameters

    def _as_argument(self, value: Any) -> Any:
        return self.attribute(value) if isinstance(value, Tensor) else value

    def attribute(self, tensor: Tensor) -> fx.Node:
        """A constant as a parameter of the network, by its name in the file; integers become a buffer."""
        if tensor.dtype in (torch.int64, torch.int32) and bool((tensor % IMAGES == 0).logical_and(tensor > 0).any()):
            raise ModelError("the number of images is used as a value")
        key = ("attribute", id(tensor))
        if key not in self._layers:
            kept = nn.Parameter(tensor) if tensor.is_floating_point() else tensor
            self._layers[key] = self._store(self.name_of(tensor) or "constant", kept)
            self._names.setdefault(id(tensor), "")
            self.values.setdefault(f" {id(tensor)}", tensor)  # so that its id stays its own
        node = self.graph.get_attr(self._layers[key])
        node.meta["value"] = torch.empty_like(tensor, device="meta")
        return node

    def _store(self, name: str, part: nn.Module | Tensor) -> str:
        """Keep a layer or tensor under a name; returns the name that it got."""
        path = dotted(name)
        owner, last = self.root, path.split(".")
        for word in last[:-1]:
            if not isinstance(owner._modules.get(word), nn.Module):
                if hasattr(owner, word):
                    return self._store(name.replace(".", "_"), part)
                owner.add_module(word, nn.Module())
            owner = owner._modules[word]  # type: ignore[assignment]
        free, number = last[-1], 2
        while hasattr(owner, free):
            free, number = f"{last[-1]}_{number}", number + 1
        if isinstance(part, nn.Module):
            owner.add_module(free, part)
        elif isinstance(part, nn.Parameter):
            owner.register_parameter(free, part)
        else:
            owner.register_buffer(free, part)
        return ".".join([*last[:-1], free])


def dotted(name: str) -> str:
    """A name of the file as the dotted name of a parameter: `/layer1/layer1.0/conv1` is layer1.0.conv1."""
    words: list[str] = []
    for part in name.split("/"):
        if words and part.startswith(f"{words[-1]}."):
            words.pop()
        words += [part] if part else []
    parts = [re.sub(r"\W", "_", word) for word in ".".join(words).split(".") if word]
    return (
        ".".join(f"_{word}" if word[:1].isdigit() and place == 0 else word for place, word in enumerate(parts)) or "_"
    )


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a value, with IMAGES for the number of images."""
    return tuple(value.meta["value"].shape if is_node(value) else value.shape)


def type_of(value: Value) -> torch.dtype:
    """The type of a value's elements."""
    found: torch.dtype = (value.meta["value"] if is_node(value) else value).dtype
    return found


@dataclass(frozen=True)
class Operation:
    """One operation of the file: its inputs as values, its attributes, and where its calls go.

    Attributes:
        kind: Its ONNX name, such as Conv.
        name: Its own name in the file.
        opset: The version of the operators in the file.
        inputs: Its inputs; None where an optional one is left out.
        given: Attributes that the file gives.
        num_outputs: Number of its outputs.
        once: Whether the value of each input is read by this operation only.
    """

    at: Importing
    kind: str
    name: str
    opset: int
    inputs: Sequence[Value]
    given: Mapping[str, Any]
    num_outputs: int = 1
    once: Sequence[bool] = ()

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

    def has(self, place: int) -> bool:
        """Whether an input is given."""
        return self.input(place) is not None

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Value:
        """A call of a function of torch."""
        return self.at.call(function, *args, **kwargs)

    def constant(self, place: int) -> Tensor:
        """An input that must not depend on the images."""
        value = self.input(place)
        if not isinstance(value, Tensor):
            raise ModelError(f"its input {place + 1} is computed from the images; it must be a constant")
        return value

    def numbers(self, attribute: str, place: int | None = None, default: Any = None) -> Any:
        """Numbers that are an attribute or, in newer opsets, an input; a list of them, or one number."""
        if attribute in self.given:
            return self.given[attribute]
        if (
            place is None
            or not self.has(place)
            or (isinstance(self.inputs[place], Tensor) and not self.inputs[place].numel())
        ):
            return default
        return self.constant(place).tolist()

    def layer_name(self, weight: Tensor) -> str:
        """What a layer is called: as its weight in the file, without `.weight`, or else as the operation."""
        name = self.at.name_of(weight)
        ending = next((end for end in (".weight", "/weight", "_weight") if name.endswith(end)), "")
        if ending:
            return name.removesuffix(ending)
        own = self.name.removesuffix(f"/{self.kind}")
        return own if own.startswith("/") or not name else name

    def refuse(self, why: str) -> ModelError:
        """The error for an operation that cannot be imported."""
        return ModelError(why)
