"""What may be drawn next in a random network, and how often. A maker that finds nothing that fits makes nothing."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from torch import nn

from tests.graph.dag_odd_makers import ODD_BAG, WIDEST
from tests.graph.dag_wrong_makers import WRONG_BAG
from tests.graph.dags import Builder, Dag

WIDTHS = (2, 3, 4, 6, 8, 12)
ACTIVATIONS = ("relu", "relu_inplace", "sigmoid", "tanh", "exp", "clamp", "scalar", "dropout")
Maker = Callable[[Builder], None]


def divisors(*numbers: int) -> list[int]:
    return [n for n in range(1, min(numbers) + 1) if all(number % n == 0 for number in numbers)]


def make_conv(b: Builder) -> None:
    x = b.map()
    kernel = b.choice((1, 3))
    stride = b.choice((1, 1, 1, 2))
    b.layer(nn.Conv2d(b.channels(x), b.choice(WIDTHS), kernel, stride, kernel // 2, bias=b.draw(st.booleans())), x)


def make_grouped(b: Builder) -> None:
    x = b.map()
    outputs = b.choice(WIDTHS)
    groups = b.choice(divisors(b.channels(x), outputs))
    kind = b.choice((nn.Conv2d, nn.Conv2d, nn.ConvTranspose2d))
    b.layer(kind(b.channels(x), outputs, 3, padding=1, groups=groups), x)


def make_depthwise(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    if channels < 2:
        return
    multiplier = b.choice((1, 1, 2))
    b.layer(nn.Conv2d(channels, channels * multiplier, 3, padding=1, groups=channels), x)


def make_conv_norm_act(b: Builder) -> None:
    x = b.map()
    width = b.choice(WIDTHS)
    x = b.layer(nn.Conv2d(b.channels(x), width, 3, padding=1, bias=False), x)
    b.layer("relu", b.layer(nn.BatchNorm2d(width), x))


def make_norm(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    norms = [nn.BatchNorm2d(channels), nn.BatchNorm2d(channels), nn.BatchNorm2d(channels, affine=False)]
    norms += [nn.PReLU(channels), nn.PReLU(1), nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)]
    b.layer(b.choice(norms), x)


def make_odd_norm(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    groups = b.choice(divisors(channels))
    b.layer(b.choice((nn.GroupNorm(groups, channels), nn.LocalResponseNorm(3))), x)


def make_activation(b: Builder) -> None:
    name = b.choice((*ACTIVATIONS, "layer"))
    if name == "layer":
        b.layer("relu", b.map())
    else:
        b.add(name, b.map())


def make_residual(b: Builder) -> None:
    """x + conv(act(conv(norm(x)))): the block of every ResNet, on whatever is there."""
    x = b.map()
    channels = b.channels(x)
    width = b.choice(WIDTHS)
    inner = b.layer(nn.BatchNorm2d(channels), x) if b.draw(st.booleans()) else x
    inner = b.layer("relu", b.layer(nn.Conv2d(channels, width, 3, padding=1), inner))
    b.add(b.choice(("add", "iadd", "add_fn")), x, b.layer(nn.Conv2d(width, channels, 1), inner))


def make_pair(b: Builder) -> None:
    x = b.map()
    op = b.choice(("add", "add", "add", "iadd", "sub", "mul", "maximum", "where", "lerp", "add_fn", "iadd_alias"))
    y = b.like(x)
    if op == "iadd_alias" and 0 in (x, y):
        op = "add"  # the image is the caller's
    b.add(op, x, y)


def make_bridge(b: Builder) -> None:
    """Two branches of different widths joined by an add after a convolution on one of them."""
    x = b.map()
    height = b.values[x].shape[2:]
    y = b.pick(lambda value: value.dim() == 4 and value.shape[2:] == height)
    assert y is not None
    b.add("add", x, b.layer(nn.Conv2d(b.channels(y), b.channels(x), 1), y))


def make_gate(b: Builder) -> None:
    """Squeeze-excite, its gate perhaps from another branch."""
    x = b.map()
    y = b.map()
    squeezed = b.add(b.choice(("mean_kept", "max_pixels")), y)
    hidden = b.layer("relu", b.layer(nn.Conv2d(b.channels(y), 2, 1), squeezed))
    gate = b.add("sigmoid", b.layer(nn.Conv2d(2, b.channels(x), 1), hidden))
    b.add(b.choice(("gate", "gate_first")), x, gate)


def make_own_gate(b: Builder) -> None:
    """A gate that is a channel's own mean, no layer between."""
    x = b.map()
    b.add("gate", x, b.add("sigmoid", b.add("mean_kept", x)))


def make_spatial_gate(b: Builder) -> None:
    x = b.map()
    source = b.choice(("layer", "mean_channels", "max_channels"))
    one = b.layer(nn.Conv2d(b.channels(x), 1, 3, padding=1), x) if source == "layer" else b.add(source, x)
    b.add(b.choice(("gate", "one_channel_add")), x, b.add("sigmoid", one))


def make_cat(b: Builder) -> None:
    x = b.map()
    pixels = b.values[x].shape[2:]
    parts = [x]
    for _ in range(b.integer(1, 2)):
        found = b.pick(lambda value: value.dim() == 4 and value.shape[2:] == pixels)
        assert found is not None
        parts.append(found)
    if sum(b.channels(part) for part in parts) <= WIDEST:
        b.add(b.choice(("cat", "cat_negative_axis")), *parts)


def make_stack(b: Builder) -> None:
    x = b.map()
    op = b.choice(("stack_sum", "stack_flat", "cat_rows"))
    if op != "stack_flat" or 2 * b.channels(x) <= WIDEST:
        b.add(op, x, b.like(x))


def make_parts(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    if channels < 2:
        return
    kinds = ["halves"] * 3 + ["split_dynamic", "groups_apart"] * (channels % 2 == 0) + ["split"]
    kinds += ["thirds"] if channels > 4 else []
    kind = b.choice(kinds)
    first = b.integer(1, channels - 1)
    b.add(kind, x, consts=([first, channels - first],) if kind == "split" else ())


def make_glu(b: Builder) -> None:
    x = b.map()
    if b.channels(x) % 2 == 0:
        b.add("halves", x)
        b.add("mul", len(b.values) - 2, len(b.values) - 1)


def make_slice(b: Builder) -> None:
    x = b.map()
    channels = b.channels(x)
    op = b.choice(("slice_literal", "slice_step", "slice_dynamic", "narrow", "pick_channels", "slice_ellipsis", "flip"))
    if channels < 2 or (op == "slice_ellipsis" and b.values[x].shape[3] < 2):
        return
    low = b.integer(0, channels - 1)
    consts = {
        "slice_literal": (low, b.integer(low + 1, channels)),
        "narrow": (low, channels - low),
        "slice_dynamic": (b.draw(st.booleans()),),
        "pick_channels": (tuple(b.integer(0, channels - 1) for _ in range(3)),),
    }
    b.add(op, x, consts=consts.get(op, ()))


def make_shuffle(b: Builder) -> None:
    x = b.map()
    groups = [n for n in divisors(b.channels(x)) if n > 1]
    if not groups:
        return
    op = b.choice(("shuffle", "shuffle", "shuffle_unknown_groups", "channel_shuffle", "module"))
    if op == "module":
        b.layer(nn.ChannelShuffle(b.choice(groups)), x)
    else:
        b.add(op, x, consts=(b.choice(groups),))


def make_group_sum(b: Builder) -> None:
    x = b.map()
    groups = [n for n in divisors(b.channels(x)) if n > 1]
    if groups:
        b.add(b.choice(("group_sum", "radix_attention")), x, consts=(b.choice(groups),))


def make_pixels(b: Builder) -> None:
    """Something that moves pixels and leaves channels alone, or trades them."""
    x = b.map()
    channels, height, width = b.values[x].shape[1:]
    ops = ["avg_pool", "pad_pixels", "transpose_pixels", "adaptive", "mean_rows", "softmax_pixels"]
    ops += ["max_pool", "slice_pixels", "pad_reflect", "std_pixels"] if min(height, width) > 1 else []
    ops += ["interpolate"] if max(height, width) < 8 else []
    ops += ["pixel_shuffle"] if channels % 4 == 0 and max(height, width) < 8 else []
    ops += ["pixel_unshuffle"] if height % 2 == width % 2 == 0 and channels * 4 <= WIDEST else []
    b.add(b.choice(ops), x)


def make_resize(b: Builder) -> None:
    b.add("resize_like", b.map(), b.map())


def make_wider(b: Builder) -> None:
    x = b.map()
    if 2 * b.channels(x) > WIDEST:
        return
    op = b.choice(("pad_channels", "pad_channels", "cat_zeros", "repeat", "repeat_interleave"))
    consts = (b.integer(0, 2), b.integer(0, 2), b.choice((0.0, 0.0, 1.0)))
    b.add(op, x, consts=consts if op == "pad_channels" else ())


def make_padded_shortcut(b: Builder) -> None:
    """The CIFAR shortcut: zero channels around, then the sum with a wider branch."""
    x = b.map()
    channels = b.channels(x)
    low, high = b.integer(0, 2), b.integer(0, 2)
    wide = b.layer(nn.Conv2d(channels, channels + low + high, 1), x)
    b.add("add", wide, b.add("pad_channels", x, consts=(low, high, 0.0)))


def make_strange(b: Builder) -> None:
    """What no rule need know."""
    op = b.choice(("softmax_channels", "normalize", "cumsum", "attention", "roll", "mean_channels", "max_channels"))
    b.add(op, b.map())


def make_linear_on_map(b: Builder) -> None:
    """Channels last, a linear layer (or two, and a norm), and back."""
    x = b.map()
    channels = b.channels(x)
    y = b.add("channels_last", x, last=True)
    if b.choice((False, False, True)):
        y = b.layer(nn.LayerNorm(channels), y, last=True)
    width = b.choice(WIDTHS)
    y = b.layer(nn.Linear(channels, width), y, last=True)
    if b.draw(st.booleans()):
        y = b.layer(nn.Linear(width, channels), b.layer("relu", y, last=True), last=True)
    b.add("channels_first", y)


def make_flatten(b: Builder) -> None:
    x = b.map()
    count = b.values[x][0].numel()
    if count > 128:
        x = b.add("adaptive", x)
        count = b.values[x][0].numel()
    op = b.choice(("flatten", "flatten", "flatten_view", "flatten_literal", "flatten_last"))
    flat = b.add(op, x, consts=(count,) if op == "flatten_literal" else ())
    if b.draw(st.booleans()):
        flat = b.layer(nn.BatchNorm1d(count), flat)
    b.layer(nn.Linear(count, b.choice(WIDTHS)), flat)


def make_vector(b: Builder) -> None:
    b.add(b.choice(("mean_pixels", "mean_pixels", "einsum")), b.map())


def make_vector_layer(b: Builder) -> None:
    x = b.pick(lambda value: value.dim() == 2)
    if x is not None:
        width = b.channels(x)
        b.layer(b.choice((nn.Linear(width, b.choice(WIDTHS)), nn.BatchNorm1d(width), nn.Linear(width, width))), x)


def make_map_of_vector(b: Builder) -> None:
    x = b.pick(lambda value: value.dim() == 2 and value.shape[1] <= WIDEST)
    if x is None:
        return
    x = b.add(b.choice(("to_map", "unsqueeze")), x)
    b.add("expand_pixels", x, consts=(b.choice((2, 4)),))


def make_scale(b: Builder) -> None:
    x = b.map()
    channels, height, width = b.values[x].shape[1:]
    op = b.choice(("scale", "scale", "shift"))
    old = [n for n, p in b.net.scales.items() if tuple(p.shape) == (channels, 1, 1)]
    if old and b.choice((True, False, False)):
        b.parameter(op, x, name=b.choice(old))  # one parameter for two tensors
        return
    shapes = ((channels, 1, 1), (1, channels, 1, 1), (1,), (channels, 1, width), (1, channels, height, width), ())
    b.parameter(op, x, shape=b.choice(shapes))


def make_unread(b: Builder) -> None:
    """A layer whose output is hidden from the rest of the program."""
    x = b.map()
    made = b.layer(nn.Conv2d(b.channels(x), b.choice(WIDTHS), 1), x)
    b.last[made] = True


def make_again(b: Builder) -> None:
    """A layer called a second time, or a second layer with the weights of the first."""
    x = b.map()
    channels = b.channels(x)
    found = [n for n, m in b.net.layers.items() if isinstance(m, nn.Conv2d) and m.in_channels == channels]
    if not found:
        return
    name = b.choice(found)
    if b.draw(st.booleans()):
        b.layer(name, x)
        return
    first = b.net.layers[name]
    assert isinstance(first, nn.Conv2d)
    twin = nn.Conv2d(channels, first.out_channels, first.kernel_size, first.stride, first.padding, groups=first.groups)
    made = b.layer(twin, x)
    del made
    twin.weight = first.weight


MAKERS: tuple[tuple[int, Maker], ...] = (
    (6, make_conv),
    (5, make_grouped),
    (4, make_depthwise),
    (6, make_conv_norm_act),
    (4, make_norm),
    (1, make_odd_norm),
    (3, make_activation),
    (5, make_residual),
    (5, make_pair),
    (3, make_bridge),
    (3, make_gate),
    (1, make_own_gate),
    (2, make_spatial_gate),
    (6, make_cat),
    (2, make_stack),
    (4, make_parts),
    (2, make_glu),
    (2, make_slice),
    (3, make_shuffle),
    (2, make_group_sum),
    (3, make_pixels),
    (1, make_resize),
    (2, make_wider),
    (2, make_padded_shortcut),
    (1, make_strange),
    (3, make_linear_on_map),
    (2, make_flatten),
    (1, make_vector),
    (2, make_vector_layer),
    (1, make_map_of_vector),
    (2, make_scale),
    (1, make_unread),
    (1, make_again),
)
BAG = [maker for weight, maker in MAKERS for _ in range(weight)]


@st.composite
def dags(draw: st.DrawFn, steps: int = 9, deceiving: bool = False) -> Dag:
    """A random network; one in three has odd corners. Deceiving ones have layers that are not what they seem."""
    b = Builder(draw)
    b.net.layers["relu"] = nn.ReLU()  # one module for the whole network: calling it often is fine
    x = b.layer(nn.Conv2d(3, b.choice(WIDTHS), 3, padding=1), 0)
    assert x == 1
    odd = b.choice((False, False, True))
    for _ in range(b.integer(1, steps)):
        bag = ODD_BAG if odd and b.choice((False, False, True)) else BAG
        bag = WRONG_BAG if deceiving and b.choice((False, True)) else bag
        b.choice(bag)(b)
    b.net.results = tuple(make_result(b) for _ in range(b.choice((1, 1, 2))))
    return b.net


def make_result(b: Builder) -> int:
    """Class scores from a recent tensor as a rule, the bare tensor now and then."""
    recent = [i for i, value in enumerate(b.values) if not b.last[i] and value.dim() in (2, 4)]
    x = b.choice(recent[-4:])
    if b.choice((True, False, False, False, False, False)):
        return x
    if b.values[x].dim() == 4:
        x = b.add("mean_pixels", x)
    return b.layer(nn.Linear(b.channels(x), 3), x)
