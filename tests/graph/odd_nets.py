"""Networks with an odd corner each, and networks that deceive whoever follows their channels: each must be pruned
exactly, be left alone or be refused, but never be wrong."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.nets import Chain, conv, pooled


class Through(nn.Module):
    """A convolution, something in between, and a reader: a -> between -> b -> fc."""

    def __init__(self, between: Any, width: int = 8) -> None:
        super().__init__()
        self.a, self.between, self.b, self.fc = conv(3, width), between, conv(width, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.b(self.between(self.a(x))))))


class Function(nn.Module):
    """A plain function as a module, which the trace walks through."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Network(nn.Module):
    """Layers by their names, and a function that computes with them."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class GainConv(nn.Conv2d):
    """A learned gain per filter."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.gain, self.bias)


class SamePadConv(nn.Conv2d):
    """Pads by what the image needs, as TensorFlow does."""

    def forward(self, x: Tensor) -> Tensor:
        missing = [
            max((-(-s // t) - 1) * t + k - s, 0)
            for s, t, k in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)
        ]
        x = F.pad(x, [missing[1] // 2, missing[1] - missing[1] // 2, missing[0] // 2, missing[0] - missing[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride)


class StandardConv(nn.Conv2d):
    """A weight-standardised convolution: each filter is computed from its weights for all inputs, and has a gain."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2, groups=groups)
        self.gain = nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def forward(self, input: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        scale = self.gain / (centred.square().sum((1, 2, 3), keepdim=True) + 0.1).sqrt()
        return self._conv_forward(input, centred * scale, self.bias)


class FrozenNorm(nn.Module):
    """torchvision's FrozenBatchNorm2d: scale and shift are computed from buffers."""

    def __init__(self, channels: int, varied: bool = True) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5 if varied else torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.reshape(1, -1, 1, 1) * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        return x * scale + (self.bias.reshape(1, -1, 1, 1) - self.running_mean.reshape(1, -1, 1, 1) * scale)


class Filtered(nn.Module):
    """The same fixed filters for every channel, as in blurs and wavelets."""

    def __init__(self, count: int, expand: bool = False) -> None:
        super().__init__()
        self.register_buffer("filters", torch.randn(count, 1, 3, 3))
        self.expand = expand

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        each = self.filters.expand(channels, -1, 3, 3) if self.expand else self.filters.repeat(channels, 1, 1, 1)
        return F.conv2d(x, each, padding=1, groups=channels)


class SharedStorage(nn.Module):
    """Two parameters, one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.s, self.t, self.fc = conv(3, 4), conv(4, 4), conv(4, 4), nn.Linear(4, 5)
        self.t.weight = nn.Parameter(self.s.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.t(F.relu(self.s(F.relu(self.a(x)))))))


class TiedScales(nn.Module):
    """One norm's scale is another's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 6), conv(6, 6), nn.Linear(6, 5)
        self.one, self.other = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.other(self.b(F.relu(self.one(self.a(x))))))))


class NormTwice(TiedScales):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.one(self.b(F.relu(self.one(self.a(x))))))))


class BiasShared(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.a = conv(3, 4)
        self.bn.bias = self.a.bias


class Eca(nn.Module):
    """A gate from a convolution over neighbouring channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.conv(x.mean((2, 3)).unsqueeze(1)).transpose(1, 2).unsqueeze(-1)
        return x * gate.sigmoid()


class Both(nn.Module):
    """The same stream read before and after it is added to: an unread sum, a late reader, a gate between streams."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 6), conv(6, 6), conv(6, 6, groups=2), conv(12, 6, 1)
        self.gate, self.fc = conv(6, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = x + self.b(F.relu(x))
        z = y * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True))) + self.c(x)
        _ = z - y
        return self.fc(pooled(self.d(torch.cat([z, y], 1)) + x))


class GatedShuffle(nn.Module):
    """A shuffle of three groups, gated by what was not shuffled, in front of three groups: nine blocks of three."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.squeeze, self.gate = conv(3, 27), nn.Conv2d(27, 4, 1), nn.Conv2d(4, 27, 1)
        self.spread, self.b, self.fc = (
            nn.Conv2d(27, 27, 3, groups=27, padding=1),
            nn.Conv2d(27, 6, 1, groups=3),
            nn.Linear(6, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.channel_shuffle(F.relu(self.a(x)), 3)
        return self.fc(pooled(F.relu(self.b(self.spread(x) * torch.sigmoid(self.gate(self.squeeze(x)))))))


def between(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Through(Function(function))


def layer(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Through(make())


def with_forward(kind: type[nn.Module], forward: Callable[..., Any], *arguments: Any, **options: Any) -> nn.Module:
    """A layer of PyTorch's with another forward."""
    return type(f"Own{kind.__name__}", (kind,), {"forward": forward})(*arguments, **options)  # type: ignore[no-any-return]


def through(kind: type[nn.Module], forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return layer(lambda: with_forward(kind, forward, *arguments, **options))


def chain(forward: Callable[..., Any]) -> Callable[[], nn.Module]:
    """The chain of tests.nets with another forward."""
    return lambda: with_forward(Chain, forward)


def by_width(self: Any, x: Tensor) -> Tensor:
    """Another path for narrow tensors."""
    x = self.a(x)
    return self.fc(pooled(F.relu(self.b(self.bn(x) if x.shape[1] > 3 else x * 2))))


def mixing_norm(self: Any, x: Tensor) -> Tensor:
    return nn.BatchNorm2d.forward(self, x) + x.mean((1, 2, 3), keepdim=True)


def gated_linear(self: Any, x: Tensor) -> Tensor:
    return nn.Linear.forward(self, x) * x.mean(-1, keepdim=True)


def ramp(x: Tensor) -> Tensor:
    return x * torch.linspace(0.5, 1.5, x.size(1), dtype=x.dtype).view(1, -1, 1, 1)


def on_tokens(module: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> nn.Module:
    """A module that takes the pixels of an image as a sequence, and gives one."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return call(m.part, x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape)

    return Network(forward, part=module)


def with_coordinates(m: Any, x: Tensor) -> Tensor:
    """Rows and columns as further channels, once for each image. With one channel left, that is as long as an axis."""
    h = F.relu(m.a(x))
    rows = torch.linspace(-1, 1, h.shape[2], dtype=h.dtype).view(1, 1, -1, 1).expand(h.shape[0], 1, *h.shape[2:])
    columns = torch.linspace(-1, 1, h.shape[3], dtype=h.dtype).repeat(h.shape[0], 1, h.shape[2], 1)
    return m.fc(pooled(F.relu(m.b(torch.cat([h, rows, columns], 1)))))


TABLE = torch.arange(8.0).view(8, 1, 1)  # neither parameter nor buffer


CORNERS: dict[str, Callable[[], nn.Module]] = {
    "centred relu": through(nn.ReLU, lambda self, x: F.relu(x - x.mean(1, keepdim=True))),
    "flipping identity": through(nn.Identity, lambda self, x: x.flip(1)),
    "ramp pool": through(nn.MaxPool2d, lambda self, x: ramp(nn.MaxPool2d.forward(self, x)), 2),
    "mixing norm": through(nn.BatchNorm2d, mixing_norm, 8),
    "active norm": through(nn.BatchNorm2d, lambda self, x: F.silu(nn.BatchNorm2d.forward(self, x)), 8),
    "gain conv": layer(lambda: GainConv(8, 8, 3, padding=1)),
    "residual conv": through(nn.Conv2d, lambda self, x: nn.Conv2d.forward(self, x) + x, 8, 8, 3, padding=1),
    "same-pad conv": layer(lambda: SamePadConv(8, 8, 3, stride=2)),
    "shared gate linear": layer(
        lambda: on_tokens(with_forward(nn.Linear, gated_linear, 8, 8), lambda part, x: part(x))
    ),
    "shared storage": SharedStorage,
    "tied scales": TiedScales,
    "norm twice": NormTwice,
    "read outside": chain(lambda self, x: Chain.forward(self, x) * self.b.weight.abs().mean() + self.bn.weight.sum()),
    "bias shared": BiasShared,
    "table": between(lambda x: x + TABLE.to(x.dtype)),
    "by width": chain(by_width),
    "checkpointed": chain(lambda self, x: Chain.forward(self, checkpoint(lambda y: y * 2, x, use_reentrant=False))),
    "multi-head attention": layer(
        lambda: on_tokens(
            nn.MultiheadAttention(8, 2, batch_first=True), lambda part, x: part(x, x, x, need_weights=False)[0]
        )
    ),
    "lstm": layer(lambda: on_tokens(nn.LSTM(8, 8, batch_first=True), lambda part, x: part(x)[0])),
    "eca": layer(Eca),
    "both": Both,
    "norm without statistics": layer(lambda: nn.BatchNorm2d(8, track_running_stats=False)),
    "instance norm": layer(lambda: nn.InstanceNorm2d(8, affine=True)),
    "prelu": layer(lambda: nn.PReLU(8)),
    "rms norm": layer(lambda: on_tokens(nn.RMSNorm(8), lambda part, x: part(x))),
    "circular": layer(lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")),
    "same": layer(lambda: nn.Conv2d(8, 8, 5, padding="same", dilation=2)),
    "depthwise transposed": layer(lambda: nn.ConvTranspose2d(8, 8, 3, groups=8)),
    "upsample": layer(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    "softmax of channels": layer(lambda: nn.Softmax(dim=1)),
    "matrix product": between(lambda x: (x.flatten(2) @ x.flatten(2).transpose(1, 2) @ x.flatten(2)).view_as(x) * 0.01),
    "channel count by len": between(lambda x: x * len(x[0])),
    "batch by len": between(lambda x: x.reshape(len(x), -1, 8, 8)),
    "channel count by ones": between(lambda x: x * torch.ones(x.size(1), dtype=x.dtype).sum()),
    "channel count by bias": between(lambda x: x + torch.full((x.size(1), 1, 1), 0.5, dtype=x.dtype).cumsum(0)),
    "eye": between(lambda x: torch.einsum("nchw,cd->ndhw", x, torch.eye(x.size(1), dtype=x.dtype))),
    "roll and add": between(lambda x: x + torch.roll(x, 1, 1)),
    "shift and add": between(lambda x: x + torch.cat([x[:, 1:], x[:, :1]], 1)),
    "flip and add": between(lambda x: x + x.flip(1)),
    "cut behind the end": between(lambda x: torch.cat([x, x * 2], 1)[:, :16][:, 8:20]),
    "coordinates": lambda: Network(with_coordinates, a=conv(3, 8), b=conv(10, 6), fc=nn.Linear(6, 5)),
    "group mean": between(
        lambda x: (
            x
            - x.view(x.size(0), 2, -1, *x.shape[2:])
            .mean(2, keepdim=True)
            .expand(-1, -1, x.size(1) // 2, -1, -1)
            .reshape(x.shape)
        )
    ),
    "scatter": between(lambda x: torch.zeros_like(x).scatter_(1, torch.zeros_like(x, dtype=torch.long), x)),
    "where of a mask": between(lambda x: torch.where(torch.arange(x.size(1)).view(1, -1, 1, 1) % 2 == 0, x, -x)),
    "cosine": between(lambda x: x * F.cosine_similarity(x, x + 1, dim=1).unsqueeze(1)),
    "clone and zero": between(lambda x: x.clone().zero_() + x),
    "copy": between(lambda x: torch.empty_like(x).copy_(x)),
    "type as": between(lambda x: x.float().type_as(x)),
    "data": between(lambda x: x.detach() + x.data),
    "gated shuffle": GatedShuffle,
    "one layer": lambda: nn.Conv2d(3, 4, 1),
    "nested": lambda: nn.Sequential(
        *[nn.Sequential(conv(3 if i == 0 else 5, 5), nn.BatchNorm2d(5), nn.ReLU6(inplace=True)) for i in range(3)],
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20, 3),
    ),
}


# -- networks that deceive


WIDTH = 16


class Plain(nn.Module):
    """Three convolutions, with room for something odd between the second and the third."""

    def __init__(self, odd: Callable[[Any, Tensor], Tensor] | None = None, **layers: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, WIDTH, 3), nn.Conv2d(WIDTH, WIDTH, 3), nn.Conv2d(WIDTH, 8, 3)
        self.odd = odd
        for name, layer in layers.items():
            setattr(self, name, layer)

    def between(self, h: Tensor) -> Tensor:
        return h.relu() if self.odd is None else self.odd(self, h)

    def forward(self, x: Tensor) -> Any:
        return self.c(self.between(self.b(F.relu(self.a(x)))))


def centred(h: Tensor) -> Tensor:
    return h - h.mean(1, keepdim=True)


def standardised(weight: Tensor) -> Tensor:
    return weight - weight.mean((1, 2, 3), keepdim=True)


class OwnConvForward(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, standardised(weight), bias)


class Flagged(nn.Conv2d):
    """A flag that its repr does not show."""

    def __init__(self, *args: int, centre: bool = False) -> None:
        super().__init__(*args)
        self.centre = centre

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.weight) if self.centre else self.weight, self.bias)


class ScaledReLU(nn.ReLU):
    """A parameter for each channel, in a class whose rule knows of none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = width
        self.gain = nn.Parameter(torch.rand(width, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input) * self.gain


class Remembers(Plain):
    """Keeps what it saw, in attributes, a list, a buffer and a hook, and allows no other size later."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.last: Any = None
        self.seen: list[Any] = []

    def between(self, h: Tensor) -> Tensor:
        if self.last is None:
            self.a.register_forward_hook(lambda module, inputs, output: None)
        elif self.last.shape != h.shape:
            raise RuntimeError("another shape")
        self.last, self.total = h, self.total + 1
        self.seen.append(h)
        return h.relu()


class Stateful(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.state: Any = None

    def between(self, h: Tensor) -> Tensor:
        h = h if self.state is None else h + self.state
        self.state = h.detach()
        return h


class MaxNorm(nn.Conv2d):
    """Clips its own weights on every call."""

    def forward(self, input: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.1)
        return super().forward(input)


def norm() -> nn.Module:
    layer = nn.BatchNorm2d(WIDTH)
    nn.init.uniform_(layer.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return layer


def asserted(m: Any, h: Tensor) -> Tensor:
    torch._assert(h.shape[1] == WIDTH, "another width")
    return h


def count(m: Any, h: Tensor) -> Tensor:
    """Changes a buffer, in eval mode too."""
    m.n.num_batches_tracked += 1
    return h.relu()


def flagged_pair() -> nn.Module:
    return Plain(a=Flagged(3, WIDTH, 3), b=Flagged(WIDTH, WIDTH, 3), c=Flagged(WIDTH, 8, 3, centre=True))


def hooked(where: str, before: bool = False) -> nn.Module:
    model = Plain()
    layer = getattr(model, where)
    if before:
        layer.register_forward_pre_hook(lambda module, args: (centred(args[0]),))
    else:
        layer.register_forward_hook(lambda module, args, output: centred(output))
    return model


def patched() -> nn.Module:
    model = Plain()
    model.b.forward = types.MethodType(lambda self, x: F.conv2d(x, standardised(self.weight), self.bias), model.b)
    return model


def patched_by_closure() -> nn.Module:
    """The copy's forward goes on using the original's weights."""
    model = Plain()
    layer = model.b
    layer.forward = lambda x: F.conv2d(x, layer.weight, layer.bias) * 2
    return model


def parametrised_prelu() -> nn.Module:
    layer = nn.PReLU(WIDTH)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    return layer


def rows_by_width(m: Any, h: Tensor) -> Tensor:
    return h[:, :, h.size(1) - 8 : h.size(1) - 4, :]


# Each is built with something odd in it.
WRONG: dict[str, Callable[[], nn.Module]] = {
    "isinstance": lambda: Plain(lambda m, h: centred(h) if isinstance(h, torch.Tensor) else h),
    "type is Tensor": lambda: Plain(lambda m, h: centred(h) if type(h) is torch.Tensor else h),
    "width only in training": lambda: Plain(
        lambda m, h: h * torch.ones(1, WIDTH, 1, 1, dtype=h.dtype) if m.training else h
    ),
    "centred in training": lambda: Plain(lambda m, h: centred(h) if m.training else h),
    "torch._assert": lambda: Plain(asserted),
    "out_channels": lambda: Plain(lambda m, h: h.relu() / m.b.out_channels**0.5),
    "in_channels": lambda: Plain(lambda m, h: h.relu() * m.c.in_channels),
    "running_var": lambda: Plain(lambda m, h: m.n(h) * m.n.running_var.mean(), n=norm()),
    "next(parameters())": lambda: Plain(lambda m, h: m.n(h) * next(m.b.parameters()).abs().mean(), n=norm()),
    "state_dict": lambda: Plain(lambda m, h: m.n(h) + m.n.state_dict()["running_var"].sum(), n=norm()),
    "own _conv_forward": lambda: Plain(b=OwnConvForward(WIDTH, WIDTH, 3)),
    "flag outside repr": flagged_pair,
    "forward hook": lambda: hooked("b"),
    "forward pre-hook": lambda: hooked("c", before=True),
    "patched instance": patched,
    "patched by closure": patched_by_closure,
    "parametrised PReLU": lambda: Plain(lambda m, h: m.n(h), n=parametrised_prelu()),
    "scaled ReLU": lambda: Plain(lambda m, h: m.n(h), n=ScaledReLU(WIDTH)),
    "rows by width": lambda: Plain(rows_by_width),
    "attribute set in forward": Remembers,
    "recurrent state": Stateful,
    "counting buffer": lambda: Plain(count, n=norm()),
    "max norm": lambda: Plain(b=MaxNorm(WIDTH, WIDTH, 3)),
}
