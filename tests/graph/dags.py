"""Random networks: hypothesis draws a program step by step, and a module runs it.

Programs are meant to be unkind: the same tensor twice in a cat, sums of sums, gates that come from other branches,
grouped convolutions after cats, shuffles, halves, slices, zero channels, layers nobody reads. Each step is executed
while it is drawn, so shapes are known. What an op does is in `dag_ops`; a maker draws one or several steps, and makes
nothing where nothing fits.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.prune import custom_from_mask

from tests.graph.dag_ops import OPS, PARAMETER_OPS
from tests.graph.odd_nets import (
    Filtered,
    Flagged,
    FrozenNorm,
    OwnConvForward,
    ScaledReLU,
    StandardConv,
    centred,
    standardised,
)
from tests.nets import GlobalResponseNorm

BATCH = 2
WIDTHS = (2, 3, 4, 6, 8, 12)
WIDEST = 24  # cats and repeats go no further


@dataclass(frozen=True)
class Step:
    op: str
    inputs: tuple[int, ...]
    module: str | None = None
    consts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        parts = [f"v{i}" for i in self.inputs] + [repr(const) for const in self.consts]
        return f"{self.op}{'[' + self.module + ']' if self.module else ''}({', '.join(parts)})"


class Dag(nn.Module):
    """Runs a program: values are numbered in the order they are made, value 0 is the image."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.results: tuple[int, ...] = ()
        self.layers = nn.ModuleDict()
        self.scales = nn.ParameterDict()

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for step in self.steps:
            made = self.run(step, [values[i] for i in step.inputs])
            values.extend(made if isinstance(made, tuple) else (made,))
        if len(self.results) == 1:
            return values[self.results[0]]
        return tuple(values[i] for i in self.results)

    def run(self, step: Step, arguments: list[Any]) -> Any:
        if step.op == "layer":
            assert step.module is not None
            return self.layers[step.module](*arguments)
        if step.op in PARAMETER_OPS:
            assert step.module is not None
            return PARAMETER_OPS[step.op](self.scales[step.module], *arguments, *step.consts)
        if step.op == "module_fact":
            assert step.module is not None
            fact = getattr(self.layers[step.module], step.consts[0])
            return arguments[0] * (fact.abs().mean() if isinstance(fact, Tensor) else fact**0.5)
        return OPS[step.op](*arguments, *step.consts)

    def __str__(self) -> str:
        lines = []
        count = 1
        for step in self.steps:
            lines.append(f"  v{count}.. = {step}" + (f"  # {self.layers[step.module]}" if step.op == "layer" else ""))
            count += {"halves": 2, "thirds": 3, "split": 2, "split_dynamic": 2, "groups_apart": 2}.get(step.op, 1)
        return "\n".join([*lines, f"  return {self.results}"])

    __repr__ = __str__


class Builder:
    """The network so far, and the tensors it has made, for makers to pick from."""

    def __init__(self, draw: Any, channels: int = 3, size: int = 4) -> None:
        self.draw = draw
        self.net = Dag()
        self.values: list[Tensor] = [torch.randn(BATCH, channels, size, size, dtype=torch.float64)]
        self.last: list[bool] = [False]  # does this value have its channels last?

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def choice(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def pick(self, wanted: Any) -> int:
        """A value that fits (there must be one), rather a recent one than an old one."""
        fits = [i for i, value in enumerate(self.values) if not self.last[i] and wanted(value)]
        return fits[-1 - min(self.integer(0, 3 * len(fits)) // 3, len(fits) - 1)] if len(fits) > 1 else fits[0]

    def map(self) -> int:
        """A tensor [N, C, H, W]; there is always one."""
        return self.pick(lambda value: value.dim() == 4)

    def like(self, index: int, dims: int = 0) -> int:
        """A value of the same shape, from a dimension on; perhaps the same one."""
        first = self.values[index]
        return self.pick(lambda value: value.dim() == first.dim() and value.shape[dims:] == first.shape[dims:])

    def channels(self, index: int) -> int:
        return self.values[index].shape[1]

    def add(self, op: str, *inputs: int, consts: tuple[Any, ...] = (), last: bool = False) -> int:
        return self._append(Step(op, inputs, None, consts), last)

    @torch.no_grad()
    def layer(self, module: nn.Module | str, index: int, last: bool = False) -> int:
        """Calls a new layer, or one that is there already, by its name."""
        if isinstance(module, str):
            name = module
        else:
            name = f"{type(module).__name__.lower()}{len(self.net.layers)}"
            self.net.layers[name] = randomised(module).double().eval()
        return self._append(Step("layer", (index,), name), last)

    def conv(self, index: int, outputs: int, kernel: int = 1, **options: Any) -> int:
        return self.layer(nn.Conv2d(self.channels(index), outputs, kernel, padding=kernel // 2, **options), index)

    @torch.no_grad()
    def parameter(self, op: str, *inputs: int, shape: tuple[int, ...] = (), name: str = "") -> int:
        """An op with a parameter outside of layers: a new one of this shape, or one that is there, by its name."""
        if not name:
            name = f"gamma{len(self.net.scales)}"
            self.net.scales[name] = nn.Parameter(torch.empty(shape, dtype=torch.float64).uniform_(0.5, 1.5))
        return self._append(Step(op, inputs, name))

    def module_fact(self, index: int, names: list[str], fact: str) -> None:
        """A tensor times a number that is an attribute of one of these layers."""
        if names:
            self._append(Step("module_fact", (index,), self.choice(names), (fact,)))

    def layers_of(self, *kinds: type[nn.Module]) -> list[str]:
        return [name for name, layer in self.net.layers.items() if isinstance(layer, kinds)]

    @torch.no_grad()
    def _append(self, step: Step, last: bool = False) -> int:
        made = self.net.run(step, [self.values[i] for i in step.inputs])
        made = made if isinstance(made, tuple) else (made,)
        self.net.steps.append(step)
        self.values.extend(made)
        self.last.extend([last] * len(made))
        return len(self.values) - 1


@torch.no_grad()
def randomised(module: nn.Module) -> nn.Module:
    """Weights that keep values near one, and nothing that is zero or one by default."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        if name == "weight" and tensor.dim() > 1:
            tensor.normal_(0.0, (2.0 / tensor[0].numel()) ** 0.5)
        elif name in ("weight", "running_var"):
            tensor.uniform_(0.5, 1.5)
        else:
            tensor.normal_(0.0, 0.3)
    return module


Maker = Callable[[Builder, int, int], Any]  # called with a map and its number of channels
BAG: list[Maker] = []
ODD_BAG: list[Maker] = []
WRONG_BAG: list[Maker] = []


def maker(weight: int, bag: list[Maker] = BAG) -> Callable[[Maker], Maker]:
    """A function that may be drawn, and how often."""

    def register(make: Maker) -> Maker:
        bag.extend([make] * weight)
        return make

    return register


@st.composite
def dags(draw: st.DrawFn, steps: int = 9, deceiving: bool = False) -> Dag:
    """A random network; one in three has odd corners. Deceiving ones have layers that are not what they seem."""
    b = Builder(draw)
    b.net.layers["relu"] = nn.ReLU()  # one module for the whole network: calling it often is fine
    b.conv(0, b.choice(WIDTHS), 3)
    odd = b.choice((False, False, True))
    for _ in range(b.integer(1, steps)):
        bag = ODD_BAG if odd and b.choice((False, False, True)) else BAG
        bag = WRONG_BAG if deceiving and b.choice((False, True)) else bag
        x = b.map()
        b.choice(bag)(b, x, b.channels(x))
    b.net.results = tuple(make_result(b) for _ in range(b.choice((1, 1, 2))))
    return b.net


def make_result(b: Builder) -> int:
    """Class scores from a recent tensor as a rule, the tensor itself now and then."""
    recent = [i for i, value in enumerate(b.values) if not b.last[i] and value.dim() in (2, 4)]
    x = b.choice(recent[-4:])
    if b.choice((True, False, False, False, False, False)):
        return x
    x = b.add("mean_pixels", x) if b.values[x].dim() == 4 else x
    return b.layer(nn.Linear(b.channels(x), 3), x)


def divisors(*numbers: int) -> list[int]:
    return [n for n in range(1, min(numbers) + 1) if all(number % n == 0 for number in numbers)]


# -- layers, blocks and operations that are common


@maker(5)
def make_grouped(b: Builder, x: int, channels: int) -> None:
    outputs = b.choice(WIDTHS)
    groups = b.choice(divisors(channels, outputs))
    kind = b.choice((nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d))
    b.layer(kind(channels, outputs, 3, padding=1, groups=groups), x)


@maker(4)
def make_norm(b: Builder, x: int, channels: int) -> None:
    norms = [nn.BatchNorm2d(channels), nn.BatchNorm2d(channels), nn.BatchNorm2d(channels, affine=False)]
    norms += [nn.PReLU(channels), nn.PReLU(1), nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)]
    b.layer(b.choice(norms), x)


@maker(3)
def make_activation(b: Builder, x: int, channels: int) -> None:
    name = b.choice(["relu", "relu_inplace", "sigmoid", "tanh", "exp", "clamp", "scalar", "dropout", "layer"])
    b.layer("relu", x) if name == "layer" else b.add(name, x)


@maker(5)
def make_residual(b: Builder, x: int, channels: int) -> None:
    """x + conv(act(conv(norm(x)))): the block of every ResNet, on whatever is there."""
    inner = b.layer(nn.BatchNorm2d(channels), x) if b.flag() else x
    inner = b.layer("relu", b.conv(inner, b.choice(WIDTHS), 3))
    b.add(b.choice(("add", "iadd", "add_fn")), x, b.conv(inner, channels))


@maker(3)
def make_gate(b: Builder, x: int, channels: int) -> None:
    """Squeeze-excite, its gate perhaps from another branch."""
    squeezed = b.add(b.choice(("mean_kept", "max_pixels")), b.map())
    gate = b.add("sigmoid", b.conv(b.layer("relu", b.conv(squeezed, 2)), channels))
    b.add(b.choice(("gate", "gate_first")), x, gate)


@maker(2)
def make_spatial_gate(b: Builder, x: int, channels: int) -> None:
    source = b.choice(("layer", "mean_channels", "max_channels"))
    one = b.conv(x, 1, 3) if source == "layer" else b.add(source, x)
    b.add(b.choice(("gate", "one_channel_add")), x, b.add("sigmoid", one))


@maker(6)
def make_cat(b: Builder, x: int, channels: int) -> None:
    parts = [x, *(b.like(x, 2) for _ in range(b.integer(1, 2)))]
    if sum(b.channels(part) for part in parts) <= WIDEST:
        b.add(b.choice(("cat", "cat_negative_axis")), *parts)


@maker(4)
def make_parts(b: Builder, x: int, channels: int) -> None:
    if channels < 2:
        return
    kinds = ["halves"] * 3 + ["split_dynamic", "groups_apart"] * (channels % 2 == 0) + ["split"]
    kind = b.choice(kinds + ["thirds"] * (channels > 4))
    first = b.integer(1, channels - 1)
    b.add(kind, x, consts=([first, channels - first],) if kind == "split" else ())


@maker(2)
def make_slice(b: Builder, x: int, channels: int) -> None:
    op = b.choice(["slice_literal", "slice_step", "slice_dynamic", "narrow", "pick_channels", "slice_ellipsis", "flip"])
    if channels < 2 or (op == "slice_ellipsis" and b.values[x].shape[3] < 2):
        return
    low = b.integer(0, channels - 1)
    consts = {
        "slice_literal": (low, b.integer(low + 1, channels)),
        "narrow": (low, channels - low),
        "slice_dynamic": (b.flag(),),
        "pick_channels": (tuple(b.integer(0, channels - 1) for _ in range(3)),),
    }
    b.add(op, x, consts=consts.get(op, ()))


@maker(5)
def make_groups(b: Builder, x: int, channels: int) -> None:
    """Shuffles, and sums over groups of channels."""
    groups = [n for n in divisors(channels) if n > 1]
    if groups:
        ops = "shuffle shuffle shuffle_unknown_groups channel_shuffle module group_sum radix_attention"
        op = b.choice(ops.split())
        count = b.choice(groups)
        b.layer(nn.ChannelShuffle(count), x) if op == "module" else b.add(op, x, consts=(count,))


@maker(3)
def make_pixels(b: Builder, x: int, channels: int) -> None:
    """Something that moves pixels and leaves channels alone, or trades them."""
    height, width = b.values[x].shape[2:]
    ops = ["avg_pool", "pad_pixels", "transpose_pixels", "adaptive", "mean_rows", "softmax_pixels"]
    ops += ["max_pool", "slice_pixels", "pad_reflect", "std_pixels"] if min(height, width) > 1 else []
    ops += ["interpolate"] if max(height, width) < 8 else []
    ops += ["pixel_shuffle"] if channels % 4 == 0 and max(height, width) < 8 else []
    ops += ["hstacked"] if channels * 2 <= WIDEST else []
    ops += ["pixel_unshuffle"] if height % 2 == width % 2 == 0 and channels * 4 <= WIDEST else []
    b.add(b.choice(ops), x)


@maker(2)
def make_wider(b: Builder, x: int, channels: int) -> None:
    if 2 * channels <= WIDEST:
        op = b.choice(("pad_channels", "pad_channels", "cat_zeros", "repeat", "repeat_interleave"))
        consts = (b.integer(0, 2), b.integer(0, 2), b.choice((0.0, 0.0, 1.0)))
        b.add(op, x, consts=consts if op == "pad_channels" else ())


@maker(3)
def make_linear_on_map(b: Builder, x: int, channels: int) -> None:
    """Channels last, a linear layer (or two, and a norm), and back."""
    y = b.add("channels_last", x, last=True)
    if b.choice((False, False, True)):
        y = b.layer(nn.LayerNorm(channels), y, last=True)
    width = b.choice(WIDTHS)
    y = b.layer(nn.Linear(channels, width), y, last=True)
    if b.flag():
        y = b.layer(nn.Linear(width, channels), b.layer("relu", y, last=True), last=True)
    b.add("channels_first", y)


@maker(2)
def make_flatten(b: Builder, x: int, channels: int) -> None:
    x = b.add("adaptive", x) if b.values[x][0].numel() > 128 else x
    count = b.values[x][0].numel()
    op = b.choice(("flatten", "flatten", "flatten_view", "flatten_literal", "flatten_last"))
    flat = b.add(op, x, consts=(count,) if op == "flatten_literal" else ())
    flat = b.layer(nn.BatchNorm1d(count), flat) if b.flag() else flat
    b.layer(nn.Linear(count, b.choice(WIDTHS)), flat)


@maker(3)
def make_of_vector(b: Builder, x: int, channels: int) -> None:
    """A layer on a vector, or a map of equal pixels, if there is a vector."""
    vectors = [i for i, value in enumerate(b.values) if not b.last[i] and value.dim() == 2]
    if not vectors:
        return
    x = b.choice(vectors)
    width = b.channels(x)
    op = b.choice(("layer", "layer", "to_map", "unsqueeze"))
    if op == "layer":
        b.layer(b.choice((nn.Linear(width, b.choice(WIDTHS)), nn.BatchNorm1d(width), nn.Linear(width, width))), x)
    elif width <= WIDEST:
        b.add("expand_pixels", b.add(op, x), consts=(b.choice((2, 4)),))


@maker(2)
def make_scale(b: Builder, x: int, channels: int) -> None:
    height, width = b.values[x].shape[2:]
    op = b.choice(("scale", "scale", "shift"))
    old = [n for n, p in b.net.scales.items() if tuple(p.shape) == (channels, 1, 1)]
    if old and b.choice((True, False, False)):
        b.parameter(op, x, name=b.choice(old))  # one parameter for two tensors
        return
    shapes = ((channels, 1, 1), (1, channels, 1, 1), (1,), (channels, 1, width), (1, channels, height, width), ())
    b.parameter(op, x, shape=b.choice(shapes))


@maker(1)
def make_again(b: Builder, x: int, channels: int) -> None:
    """A layer called a second time, or a second layer with the weights of the first."""
    names = [name for name in b.layers_of(nn.Conv2d) if b.net.layers[name].in_channels == channels]
    if not names:
        return
    name = b.choice(names)
    if b.flag():
        b.layer(name, x)
        return
    first: Any = b.net.layers[name]
    twin = nn.Conv2d(channels, first.out_channels, first.kernel_size, first.stride, first.padding, groups=first.groups)
    b.layer(twin, x)
    twin.weight = first.weight


def depthwise(b: Builder, x: int, channels: int) -> None:
    if channels > 1:
        b.conv(x, channels * b.choice((1, 1, 2)), 3, groups=channels)


def conv_norm_act(b: Builder, x: int, channels: int) -> None:
    width = b.choice(WIDTHS)
    b.layer("relu", b.layer(nn.BatchNorm2d(width), b.conv(x, width, 3, bias=False)))


def pair(b: Builder, x: int, channels: int) -> None:
    op = b.choice(["add", "add", "add", "iadd", "sub", "mul", "maximum", "where", "lerp", "add_fn", "iadd_alias"])
    y = b.like(x)
    b.add("add" if op == "iadd_alias" and 0 in (x, y) else op, x, y)  # the image is the caller's


def stack(b: Builder, x: int, channels: int) -> None:
    op = b.choice(("stack_sum", "stack_flat", "cat_rows"))
    if op != "stack_flat" or 2 * channels <= WIDEST:
        b.add(op, x, b.like(x))


def glu(b: Builder, x: int, channels: int) -> None:
    if channels % 2 == 0:
        last = b.add("halves", x)
        b.add("mul", last - 1, last)


def padded_shortcut(b: Builder, x: int, channels: int) -> None:
    """The CIFAR shortcut: zero channels around, then the sum with a wider branch."""
    low, high = b.integer(0, 2), b.integer(0, 2)
    b.add("add", b.conv(x, channels + low + high), b.add("pad_channels", x, consts=(low, high, 0.0)))


def unread(b: Builder, x: int, channels: int) -> None:
    """A layer whose output is hidden from the rest of the program."""
    b.last[b.conv(x, b.choice(WIDTHS))] = True


SHORT: list[tuple[int, Maker]] = [
    (6, lambda b, x, c: b.conv(x, b.choice(WIDTHS), b.choice((1, 3)), stride=b.choice((1, 1, 1, 2)), bias=b.flag())),
    (4, depthwise),
    (6, conv_norm_act),
    (1, lambda b, x, c: b.layer(b.choice((nn.GroupNorm(b.choice(divisors(c)), c), nn.LocalResponseNorm(3))), x)),
    (1, lambda b, x, c: b.layer(GlobalResponseNorm(c), x)),
    (5, pair),
    (3, lambda b, x, c: b.add("add", x, b.conv(b.like(x, 2), c))),  # branches of different widths
    (1, lambda b, x, c: b.add("gate", x, b.add("sigmoid", b.add("mean_kept", x)))),  # a channel's own mean as its gate
    (2, stack),
    (2, glu),
    (1, lambda b, x, c: b.add("resize_like", x, b.map())),
    (2, padded_shortcut),
    (1, lambda b, x, c: b.add(b.choice(STRANGE.split()), x)),
    (1, lambda b, x, c: b.add(b.choice(("mean_pixels", "mean_pixels", "einsum")), x)),
    (1, unread),
]
STRANGE = "softmax_channels normalize cumsum attention roll mean_channels max_channels"  # what no rule need know
for weight, short in SHORT:
    maker(weight)(short)


# -- odd corners

ANY = """count_scale count_root numel_scale channel_ramp normalised whole_mean masked first_kept one_channel
    resize_by_width channels_as_images channels_as_length norm_channels sort_channels ones_cat new_zeros_cat
    border_assigned max_rows pixels_there_and_back batch_of_ones sampled windows_there_and_back rows_in_windows
    normalised_rows largest_in_rows scripted moments pointwise turned first_row first_channel rows_by_number
    best_in_rows aten unpooled"""
EVEN = """maxout unflatten unflatten_swap halves_swapped half_changed_in_place rotate_half channels_pooled parts_listed
    native_channel_shuffle gated_by_half narrow_half"""
SEVERAL = "three_quarters without_last topk_channels diff_channels index_select unbind_sum after_first"


class Packed(nn.Module):
    """Calls a part of the network with tensors in a dict of lists, and by keyword."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.part = Unpacking(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.part({"maps": [x, x * 0.5], "more": (x.sin(),)}, factor=2.0)["sum"]


class Unpacking(nn.Module):
    """Adds what it gets in lists, each through a layer of its own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(inputs, outputs, 1) for _ in range(3)])

    def forward(self, given: dict[str, Any], *rest: Tensor, factor: float = 1.0) -> dict[str, Any]:
        maps = [*given["maps"], *given["more"], *rest]
        return {"sum": sum(layer(x) for layer, x in zip(self.layers, maps, strict=True)) * factor}


class OwnConv(nn.Module):
    """A layer as people write it themselves."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.in_channels, self.weight = inputs, nn.Parameter(torch.empty(outputs, inputs, 1, 1))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.gain = nn.Parameter(torch.empty(outputs, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias) * self.gain


class ComputedConv(OwnConv):
    """It computes its weights: from each number, from all numbers of a filter, or from all numbers of all filters."""

    def __init__(self, inputs: int, outputs: int, kind: str) -> None:
        super().__init__(inputs, outputs, bias=True)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if self.kind == "standardised":
            weight = standardised(weight) * self.gain.unsqueeze(1)
        elif self.kind == "by the largest":
            weight = weight / weight.abs().max()
        return F.conv2d(x, weight * 0.7, self.bias * 2)


class Lent(nn.Module):
    """A function on the weights of a layer that is never called."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.layer.weight, self.layer.bias)


class Rounded(nn.Conv2d):
    """Weights in steps of the largest one of each filter."""

    def forward(self, input: Tensor) -> Tensor:
        step = self.weight.abs().amax((1, 2, 3), keepdim=True) / 7
        return self._conv_forward(input, torch.round(self.weight / step) * step, self.bias)


def masked(layer: nn.Conv2d) -> nn.Module:
    """With zeros in place of some of its weights, as torch.nn.utils.prune leaves it."""
    mask = torch.arange(layer.weight.numel()).view(layer.weight.shape) % 3 > 0
    return custom_from_mask(layer, "weight", mask)  # type: ignore[no-any-return, no-untyped-call]


@maker(2, ODD_BAG)
def make_unusual_layer(b: Builder, x: int, channels: int) -> None:
    """Values computed from buffers, and weights that are computed, masked or rounded."""
    outputs = b.choice((2, 4, 6))
    computed = ("scaled", "standardised", "by the largest")
    kind = b.choice(("fixed", "blur", "rounded", "normed", "masked", "lent", *computed))
    plain = nn.Conv2d(channels, outputs, 1)
    makers = {
        "fixed": lambda: FrozenNorm(channels),
        "blur": lambda: Filtered(1, expand=True),
        "rounded": lambda: Rounded(channels, outputs, 1),
        "normed": lambda: nn.utils.parametrizations.weight_norm(plain),
        "masked": lambda: masked(plain),
        "lent": lambda: Lent(channels, outputs),
    } | {each: functools.partial(ComputedConv, channels, outputs, each) for each in computed}
    b.layer(makers[kind](), x)


@maker(8, ODD_BAG)
def make_odd(b: Builder, x: int, channels: int) -> None:
    names = f"{ANY} {EVEN if channels % 2 == 0 else ''} {SEVERAL if channels > 1 else ''}"
    op = b.choice(names.split())
    if channels + 2 <= WIDEST:
        b.add(op, x)


@maker(2, ODD_BAG)
def make_wide_odd(b: Builder, x: int, channels: int) -> None:
    op = b.choice(("pad_up_to", "branch_on_width", "channels_resized", "checked_width"))
    if op != "channels_resized":
        b.add(op, x, consts=(channels - 1 if op == "checked_width" else channels + b.integer(0, 2),))
    elif 2 * channels <= WIDEST:
        b.add(op, x)


@maker(4, ODD_BAG)
def make_odd_pair(b: Builder, x: int, channels: int) -> None:
    """Two tensors of one shape that must keep equal widths, or of which one is written into the other."""
    op = b.choice(("stacked", "part_assigned", "copy_into", "gather_rows"))
    if op == "gather_rows":
        b.add(op, x) if channels > 1 else None
    elif 2 * channels <= WIDEST:
        b.add(op, x, b.like(x))


@maker(3, ODD_BAG)
def make_tokens(b: Builder, x: int, channels: int) -> None:
    """A linear layer over channels or over pixels, or a norm over either, on a sequence of pixels."""
    height, width = b.values[x].shape[2:]
    pixels = height * width
    if b.choice((True, False)):
        y = b.add("tokens", x, last=True)  # [N, HW, C]
        layers = [nn.Linear(channels, 4), nn.BatchNorm1d(pixels), nn.Conv1d(pixels, 3, 1), nn.LayerNorm(channels)]
        kind = b.integer(0, 3)
        y = b.layer(layers[kind], y, last=True)
        if kind != 2:
            b.add("tokens_back", y, consts=(height, width))
        return
    y = b.add("pixels_flat", x, last=True)  # [N, C, HW]
    layers = [nn.Linear(pixels, pixels), nn.Conv1d(channels, 4, 1), nn.BatchNorm1d(channels), nn.PReLU(channels)]
    b.add("pixels_back", b.layer(b.choice(layers), y, last=True), consts=(height, width))


@maker(1, ODD_BAG)
def make_rows(b: Builder, x: int, channels: int) -> None:
    """Pixels in the batch: [N H W, C]."""
    y = b.add("rows", x, last=True)
    y = b.layer(b.choice((nn.Linear(channels, 4), nn.BatchNorm1d(channels))), y, last=True)
    n, _, height, width = b.values[x].shape
    b.add("rows_back", y, consts=(n, height, width))


@maker(1, ODD_BAG)
def make_depth(b: Builder, x: int, channels: int) -> None:
    """Channels as the depth of a volume, or as the length of a sequence (as ECA gates do)."""
    y = b.add("depth", x, last=True)
    y = b.layer(nn.Conv3d(1, b.choice((1, 2)), (3, 1, 1), padding=(1, 0, 0)), y, last=True)
    if b.values[y].shape[1] * b.values[y].shape[2] <= WIDEST:
        b.add("depth_back", y)


@maker(3, ODD_BAG)
def make_parameter(b: Builder, x: int, channels: int) -> None:
    shapes = {
        "cat_parameter": (1, 2, 1, 1),
        "einsum_parameter": (channels, 3),
        "conv_function": (3, channels, 1, 1),
        "linear_function": (3, channels),
        "prelu_function": (b.choice((1, channels)),),
        "norm_function": tuple(b.values[x].shape[1:]),
        "batch_norm_function": (channels,),
    }
    op = b.choice(shapes)
    if op != "cat_parameter" or channels + 2 <= WIDEST:
        b.parameter(op, x, shape=shapes[op])


@maker(7, ODD_BAG)
def make_odd_layer(b: Builder, x: int, channels: int) -> None:
    """Layers as people write them, layers that keep all inputs, and parts of a network with odd arguments."""
    outputs = b.choice((2, 4, 6))
    groups = b.choice((1, 2)) if channels % 4 == 0 else 1
    kinds = [
        StandardConv(channels, outputs, 1, groups),
        OwnConv(channels, b.choice((1, outputs)), b.choice((True, False))),
    ]
    b.layer(b.choice([*kinds, *kinds, *kinds, Packed(channels, outputs)]), x)


# -- networks that deceive a pruner: layers in disguise, facts of other modules, odd positions


def _patched(layer: nn.Conv2d) -> nn.Conv2d:
    """A forward of its own on one instance."""

    def forward(self: nn.Conv2d, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.weight), self.bias)

    layer.forward = types.MethodType(forward, layer)
    return layer


@maker(3, WRONG_BAG)
def make_disguised(b: Builder, x: int, channels: int) -> None:
    """A convolution that is not what its class says."""
    outputs = b.choice((2, 4, 6))
    kind = b.choice(["conv_forward", "flag", "no_flag", "patched", "hook", "pre_hook", "looking_hook"])
    if kind == "conv_forward":
        layer: nn.Conv2d = OwnConvForward(channels, outputs, 1)
    elif kind in ("flag", "no_flag"):
        layer = Flagged(channels, outputs, 1, centre=kind == "flag")
    else:
        layer = nn.Conv2d(channels, outputs, 1)
    b.layer(_patched(layer) if kind == "patched" else layer, x)  # hooks come after the first run, as a user's do
    if kind == "hook":
        layer.register_forward_hook(lambda module, args, output: centred(output))
    elif kind == "pre_hook":
        layer.register_forward_pre_hook(lambda module, args: (centred(args[0]), *args[1:]))
    elif kind == "looking_hook":
        layer.register_forward_hook(lambda module, args, output: None)


@maker(2, WRONG_BAG)
def make_disguised_activation(b: Builder, x: int, channels: int) -> None:
    if b.flag():
        b.layer(ScaledReLU(channels), x)
        return
    layer = nn.PReLU(channels)
    b.layer(layer, x)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    layer.eval()


@maker(1, ODD_BAG)
def make_swapped(b: Builder, x: int, channels: int) -> None:
    """Pixels and channels change places, and a convolution reads the pixels."""
    height = b.values[x].shape[2]
    y = b.add("swap_pixels_channels", x, last=True)
    b.add("swap_pixels_channels", b.layer(nn.Conv2d(height, height, 1), y, last=True))


@maker(1, WRONG_BAG)
def make_shared_norm(b: Builder, x: int, channels: int) -> None:
    """A norm without weights for two tensors."""
    b.layer(nn.BatchNorm2d(channels, affine=False), x)
    b.layer(list(b.net.layers)[-1], b.like(x))


@maker(2, WRONG_BAG)
def make_odd_position(b: Builder, x: int, channels: int) -> None:
    """A view that folds the channels and a literal position in it, or rows that the width counts."""
    op = b.choice(("folded_pick", "folded_chunk", "rows_by_width", "rows_by_width"))
    if op == "rows_by_width" or (channels % 2 == 0 and channels > 2):
        b.add(op, x)


@maker(1, ODD_BAG)
def make_weight_scalar(b: Builder, x: int, channels: int) -> None:
    """The size of a layer's weights as a factor: what is cut from the layer would change it."""
    names = b.layers_of(nn.Conv2d, nn.BatchNorm2d)
    b.module_fact(x, [n for n in names if getattr(b.net.layers[n], "weight", None) is not None], "weight")


# A number of a layer as a factor, its width or its statistics; two branches weighed by a parameter of two entries,
# which are no channels.
maker(1, WRONG_BAG)(lambda b, x, channels: b.module_fact(x, b.layers_of(nn.Conv2d), "out_channels"))
maker(1, WRONG_BAG)(lambda b, x, channels: b.module_fact(x, b.layers_of(nn.BatchNorm2d), "running_var"))
maker(2, ODD_BAG)(lambda b, x, channels: b.parameter("fuse", x, b.like(x), shape=(2,)))
