"""What may be drawn of the odd corners: see dag_odd_ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.dags import Builder

WIDEST = 24  # cats and repeats go no further
Maker = Callable[[Builder], None]

ANY_NAMES = (
    "count_scale count_root numel_scale channel_ramp normalised whole_mean masked first_kept one_channel "
    "resize_by_width channels_as_images channels_as_length norm_channels sort_channels ones_cat new_zeros_cat "
    "border_assigned max_rows pixels_there_and_back batch_of_ones sampled windows_there_and_back rows_in_windows "
    "normalised_rows largest_in_rows scripted"
)
ANY = ANY_NAMES.split()
EVEN_NAMES = "maxout unflatten unflatten_swap halves_swapped half_changed_in_place rotate_half channels_pooled "
EVEN_NAMES += "parts_listed native_channel_shuffle gated_by_half narrow_half"
EVEN = EVEN_NAMES.split()
SEVERAL_NAMES = "three_quarters without_last topk_channels diff_channels index_select unbind_sum after_first"
SEVERAL = SEVERAL_NAMES.split()


def make_odd(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    ops = ANY + (EVEN if channels % 2 == 0 else []) + (SEVERAL if channels > 1 else [])
    op = b.choice(ops)
    if channels + 2 <= WIDEST:
        b.add(op, x)


def make_wide_odd(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    op = b.choice(("pad_up_to", "branch_on_width", "channels_resized", "checked_width"))
    if op == "channels_resized":
        if 2 * channels <= WIDEST:
            b.add(op, x)
        return
    b.add(op, x, consts=(channels - 1 if op == "checked_width" else channels + b.integer(0, 2),))


def make_gathered(b: Builder) -> None:
    x = b.map()
    if b.channels(x) > 1:
        b.add("gather_rows", x)


def make_copy(b: Builder) -> None:
    x = b.map()
    b.add("copy_into", x, b.like(x))


def make_pair(b: Builder) -> None:
    """Two tensors of one shape that must keep equal widths, or of which one is written into the other."""
    x = b.map()
    op = b.choice(("stacked", "part_assigned"))
    if 2 * b.channels(x) <= WIDEST:
        b.add(op, x, b.like(x))


def make_swapped(b: Builder) -> None:
    """Pixels and channels change places, and a convolution reads the pixels."""
    x = b.map()
    height = b.values[x].shape[2]
    y = b.add("swap_pixels_channels", x, last=True)
    b.add("swap_pixels_channels", b.layer(nn.Conv2d(height, height, 1), y, last=True))


def make_tokens(b: Builder) -> None:
    """A linear layer over channels or over pixels, or a norm over either, on a sequence of pixels."""
    x = b.map()
    channels, height, width = b.values[x].shape[1:]
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


def make_rows(b: Builder) -> None:
    """Pixels in the batch: [N H W, C]."""
    x = b.map()
    n, channels, height, width = b.values[x].shape
    y = b.add("rows", x, last=True)
    y = b.layer(b.choice((nn.Linear(channels, 4), nn.BatchNorm1d(channels))), y, last=True)
    b.add("rows_back", y, consts=(n, height, width))


def make_depth(b: Builder) -> None:
    """Channels as the depth of a volume, or as the length of a sequence (as ECA gates do)."""
    x = b.map()
    y = b.add("depth", x, last=True)
    y = b.layer(nn.Conv3d(1, b.choice((1, 2)), (3, 1, 1), padding=(1, 0, 0)), y, last=True)
    if b.values[y].shape[1] * b.values[y].shape[2] <= WIDEST:
        b.add("depth_back", y)


def make_parameter(b: Builder) -> None:
    x = b.map()
    channels, height, width = b.values[x].shape[1:]
    shapes = {
        "cat_parameter": (1, 2, 1, 1),
        "einsum_parameter": (channels, 3),
        "conv_function": (3, channels, 1, 1),
        "linear_function": (3, channels),
        "prelu_function": (b.choice((1, channels)),),
        "norm_function": (channels, height, width),
        "batch_norm_function": (channels,),
    }
    op = b.choice(shapes)
    if op != "cat_parameter" or channels + 2 <= WIDEST:
        b.parameter(op, x, shape=shapes[op])


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


class Standardised(nn.Conv2d):
    """Each filter is computed from its weights for all inputs, and has a gain of its own."""

    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__(inputs, outputs, 1, groups=groups)
        self.gain = nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        centred = weight - weight.mean((1, 2, 3), keepdim=True)
        scale = self.gain / (centred.square().sum((1, 2, 3), keepdim=True) + 0.1).sqrt()
        return super()._conv_forward(input, centred * scale, bias)


class OwnConv(nn.Module):
    """A layer as people write it themselves."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.in_channels, self.weight = inputs, nn.Parameter(torch.empty(outputs, inputs, 1, 1))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.gain = nn.Parameter(torch.empty(outputs, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias) * self.gain


def make_own(b: Builder) -> None:
    x = b.map()
    b.layer(OwnConv(b.channels(x), b.choice((1, 2, 4, 6)), b.choice((True, False))), x)


def make_standardised(b: Builder) -> None:
    x = b.map()
    groups = 2 if b.channels(x) % 4 == 0 else 1
    b.layer(Standardised(b.channels(x), b.choice((2, 4, 6)), b.choice((1, groups))), x)


def make_packed(b: Builder) -> None:
    x = b.map()
    b.layer(Packed(b.channels(x), b.choice((2, 4, 6))), x)


def make_fused(b: Builder) -> None:
    """Two branches weighed by a parameter of two entries, which are no channels."""
    x = b.map()
    b.parameter("fuse", x, b.like(x), shape=(2,))


def make_weight_scalar(b: Builder) -> None:
    """The size of a layer's weights as a factor: what is cut from the layer would change it."""
    names = [name for name, layer in b.net.layers.items() if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d))]
    names = [name for name in names if getattr(b.net.layers[name], "weight", None) is not None]
    b.weight_scalar(b.map(), b.choice(names))


ODD_MAKERS: tuple[tuple[int, Maker], ...] = (
    (8, make_odd),
    (2, make_wide_odd),
    (1, make_gathered),
    (1, make_copy),
    (2, make_pair),
    (1, make_swapped),
    (3, make_tokens),
    (1, make_rows),
    (1, make_depth),
    (3, make_parameter),
    (1, make_packed),
    (3, make_standardised),
    (3, make_own),
    (2, make_fused),
    (1, make_weight_scalar),
)
ODD_BAG = [maker for weight, maker in ODD_MAKERS for _ in range(weight)]
