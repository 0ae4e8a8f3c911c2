"""Blocks: what an engine runs as one kernel. A convolution or linear layer, its batch norm and its activation."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from secateur.channels.graph import ChannelGraph
from secateur.channels.layer_kinds import CONVOLUTIONS, MIXING, TRANSPOSED, is_depthwise
from secateur.channels.selection import selection_of, unselect
from secateur.channels.traced import Traced, only_user

ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.SiLU,
    nn.Sigmoid,
    nn.Tanh,
)
FUNCTIONS: Mapping[Any, type[nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    torch.relu_: nn.ReLU,
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    F.relu6: nn.ReLU6,
    F.hardswish: nn.Hardswish,
    F.hardsigmoid: nn.Hardsigmoid,
    F.silu: nn.SiLU,
    torch.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
}


@dataclass(frozen=True, eq=False)
class Block:
    """One call of a layer with what follows it.

    kind: all that its time depends on except the widths, as text. Blocks of one kind are timed together.
    modules: copies of the layer, of its batch norm and of its activation, as far as it has them.
    """

    layer: str
    kind: str
    modules: nn.Sequential
    in_shape: torch.Size  # of the example
    out_shape: torch.Size
    first: bool  # reads the network's input
    last: fx.Node | None  # whose value is the block's

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers of inputs and outputs."""
        return widths_of(self.modules[0])

    @property
    def axis(self) -> int:
        """The dimension of the input that channels are on."""
        return len(self.in_shape) - 1 if isinstance(self.modules[0], nn.Linear) else 1

    @property
    def depthwise(self) -> bool:
        """Whether outputs follow from inputs."""
        return is_depthwise(self.modules[0])

    @property
    def groups(self) -> int:
        """Groups of channels that must stay equally wide."""
        return 1 if self.depthwise else int(getattr(self.modules[0], "groups", 1))

    @property
    def fused_kind(self) -> str:
        """The kind for engines that fold batch norms and biases into the layer, and take no time for a ReLU."""
        return re.sub(r"( BatchNorm\dd| ReLU(?= )|\+b)", "", self.kind)


def widths_of(layer: nn.Module) -> tuple[int, int]:
    """Numbers of inputs and outputs of a convolution or linear layer."""
    names = ("in_features", "out_features") if isinstance(layer, nn.Linear) else ("in_channels", "out_channels")
    return int(getattr(layer, names[0])), int(getattr(layer, names[1]))


def find_blocks(graph: ChannelGraph) -> list[Block]:
    """The blocks of a network in the order of their calls. A layer that is called twice has two."""
    traced = graph.found.traced
    calls = [n for n in traced.graph.nodes if n.op == "call_module" and str(n.target) in graph.layers]
    return [_block(traced, node) for node in calls if isinstance(traced.module(node), MIXING)]


def _block(traced: Traced, node: fx.Node) -> Block:
    modules, last = [traced.module(node)], node
    norm = traced.batch_norm_after(node)
    if norm is not None and selection_of(traced.module(norm)) is None:
        modules, last = [*modules, traced.module(norm)], norm
    found = _activation_after(traced, last)
    if found is not None:
        modules, last = [*modules, found[0]], found[1]
    block = nn.Sequential(*(copy.deepcopy(module) for module in modules)).eval()
    unselect(block[0])
    read = node.all_input_nodes[0]
    in_shape = traced.shapes[read.name]
    kind = _kind(str(node.target), block, in_shape, traced.shapes[node.name], read.op == "placeholder")
    return Block(str(node.target), kind, block, in_shape, traced.shapes[node.name], read.op == "placeholder", last)


def _activation_after(traced: Traced, node: fx.Node) -> tuple[nn.Module, fx.Node] | None:
    user = only_user(node)
    if user is None:
        return None
    if user.op == "call_module":
        module = traced.module(user)
        return (module, user) if type(module) in ACTIVATIONS and _is_plain(module) else None
    kind = FUNCTIONS.get(user.target) if user.op in ("call_function", "call_method") else None
    return None if kind is None or user.all_input_nodes != [node] else (kind(), user)


def _kind(name: str, block: nn.Sequential, in_shape: torch.Size, out_shape: torch.Size, first: bool) -> str:
    """What the time of a block depends on. Only layers of torch itself are known by their settings: two layers of
    another class may differ in something that does not show, so the name of the layer tells them apart."""
    layer = block[0]
    inside = slice(1, -1) if isinstance(layer, nn.Linear) else slice(2, None)
    area = f"{_joined(in_shape[inside])}->{_joined(out_shape[inside])}"
    words = [_settings(layer), area, *(_settings(module) for module in list(block)[1:])]
    words.append(str(next(block.parameters()).dtype).removeprefix("torch."))
    words += ["first"] * first
    if not all(_is_plain(module) for module in block):
        words.append(f"layer {name}")
    return " ".join(word for word in words if word)


def is_shared(kind: str) -> bool:
    """Whether a kind says all about a block, so that its timings hold for other networks too."""
    return " layer " not in kind


def _settings(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f"Linear{'' if module.bias is None else '+b'}"
    if not isinstance(module, CONVOLUTIONS):
        return type(module).__name__
    names = ("kernel_size", "stride", "padding", "dilation")
    parts = [f"{name[0]}{_joined(getattr(module, name))}" for name in names]
    groups = "depthwise" if is_depthwise(module) else f"g{module.groups}"
    turned = "Transposed" if isinstance(module, TRANSPOSED) else ""
    return f"{turned}Conv{len(module.kernel_size)}d {' '.join(parts)} {groups}{'' if module.bias is None else '+b'}"


def _joined(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is of torch's own class and nothing was added to the instance."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return type(module).__module__.startswith("torch.nn.") and not any(hooks) and "forward" not in vars(module)
