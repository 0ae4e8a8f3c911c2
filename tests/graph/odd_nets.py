"""Networks with an odd corner each, and networks that deceive whoever follows their channels: each must be pruned
exactly, be left alone or be refused, but never be wrong."""

from __future__ import annotations

import types
import warnings
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


class CentredReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(1, keepdim=True))


class FlippingIdentity(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1)


class RampPool(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.linspace(0.5, 1.5, x.size(1), dtype=x.dtype).view(1, -1, 1, 1)


class MixingNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean((1, 2, 3), keepdim=True)


class ActiveNorm(nn.BatchNorm2d):
    """As timm's: a norm that brings its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super().forward(x))


class GainConv(nn.Conv2d):
    """A learned gain per filter."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.gain, self.bias)


class ResidualConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


class SamePadConv(nn.Conv2d):
    """Pads by what the image needs, as TensorFlow does."""

    def forward(self, x: Tensor) -> Tensor:
        missing = [
            max((-(-s // t) - 1) * t + k - s, 0)
            for s, t, k in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)
        ]
        x = F.pad(x, [missing[1] // 2, missing[1] - missing[1] // 2, missing[0] // 2, missing[0] - missing[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride)


class SharedGateLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x.mean(-1, keepdim=True)


class SharedStorage(nn.Module):
    """Two parameters, one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.s, self.t, self.fc = conv(3, 4), conv(4, 4), conv(4, 4), nn.Linear(4, 5)
        self.t.weight = nn.Parameter(self.s.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.t(F.relu(self.s(F.relu(self.a(x)))))))


class FormerlyComputed(nn.Module):
    """The weight norm and masks of old, which set the weight in a hook."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.a, self.n = conv(3, 6), wrap(conv(6, 6))
        self.b, self.fc = conv(6, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.b(F.relu(self.n(F.relu(self.a(x))))))))


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


class ReadOutside(Chain):
    """A weight that the network's own code looks at."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.b.weight.abs().mean() + self.bn.weight.sum()


class BiasShared(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.a = conv(3, 4)
        self.bn.bias = self.a.bias


class Masked(nn.Module):
    """A buffer with one entry a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5, -1.0, 0.3, 0.1]).view(1, 8, 1, 1))
        self.table = torch.arange(8.0).view(8, 1, 1)  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask.to(x.dtype)


class Tabled(Masked):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.table.to(x.dtype)


class ByWidth(Chain):
    """Another path for narrow tensors."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.bn(x) if x.shape[1] > 3 else x * 2
        return self.fc(pooled(F.relu(self.b(x))))


class Checkpointed(Chain):
    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.a, x, use_reentrant=False) if self.training else self.a(x)
        return self.fc(pooled(F.relu(self.b(F.relu(self.bn(x))))))


class Optional(Chain):
    def forward(self, x: Tensor, features: bool = False, scale: float = 1.0) -> Any:
        x = F.relu(self.bn(self.a(x))) * scale
        y = self.fc(pooled(F.relu(self.b(x))))
        return (y, x) if features else y


class Attention(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        tokens = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return tokens.transpose(1, 2).reshape(n, c, h, w)


class QkvAttention(nn.Module):
    """Heads by hand: three projections in one layer, the scale from the head's width."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).reshape(n, h * w, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, h * w, c)).transpose(1, 2).reshape(n, c, h, w)


class Recurrent(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return self.lstm(x.flatten(2).transpose(1, 2))[0].transpose(1, 2).reshape(n, c, h, w)


class BlurPool(nn.Module):
    """A fixed depthwise filter in a buffer, one copy a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        line = torch.tensor([0.25, 0.5, 0.25])
        self.register_buffer("filt", (line[:, None] * line)[None, None].repeat(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.filt, stride=2, groups=x.shape[1])


class ExpandedBlur(nn.Module):
    """A fixed filter in a buffer, as many copies as there are channels; and a buffer whose value is looked at."""

    def __init__(self, looks: bool = False) -> None:
        super().__init__()
        self.register_buffer("filt", torch.full((1, 1, 3, 3), 1 / 9))
        self.register_buffer("on", torch.tensor(True))
        self.looks = looks

    def forward(self, x: Tensor) -> Tensor:
        if self.looks:
            return x * 2 if self.on else x
        return F.conv2d(x, self.filt.expand(x.size(1), 1, 3, 3), padding=1, groups=x.size(1))


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


CORNERS: dict[str, Callable[[], nn.Module]] = {
    "centred relu": layer(CentredReLU),
    "flipping identity": layer(FlippingIdentity),
    "ramp pool": layer(lambda: RampPool(2)),
    "mixing norm": layer(lambda: MixingNorm(8)),
    "active norm": layer(lambda: ActiveNorm(8)),
    "gain conv": layer(lambda: GainConv(8, 8, 3, padding=1)),
    "residual conv": layer(lambda: ResidualConv(8, 8, 3, padding=1)),
    "same-pad conv": layer(lambda: SamePadConv(8, 8, 3, stride=2)),
    "shared gate linear": layer(
        lambda: nn.Sequential(
            Function(lambda x: x.movedim(1, -1)), SharedGateLinear(8, 8), Function(lambda x: x.movedim(-1, 1))
        )
    ),
    "shared storage": SharedStorage,
    "weight norm of old": lambda: FormerlyComputed(nn.utils.weight_norm),
    "spectral norm of old": lambda: FormerlyComputed(nn.utils.spectral_norm),
    "spectral norm": lambda: FormerlyComputed(nn.utils.parametrizations.spectral_norm),
    "orthogonal": lambda: FormerlyComputed(nn.utils.parametrizations.orthogonal),
    "tied scales": TiedScales,
    "norm twice": NormTwice,
    "read outside": ReadOutside,
    "bias shared": BiasShared,
    "mask buffer": layer(Masked),
    "table": layer(Tabled),
    "by width": ByWidth,
    "checkpointed": Checkpointed,
    "optional": Optional,
    "multi-head attention": layer(Attention),
    "attention by hand": layer(QkvAttention),
    "lstm": layer(Recurrent),
    "eca": layer(Eca),
    "both": Both,
    "blur pool": layer(lambda: BlurPool(8)),
    "expanded blur": layer(ExpandedBlur),
    "value of a buffer": layer(lambda: ExpandedBlur(looks=True)),
    "norm without statistics": layer(lambda: nn.BatchNorm2d(8, track_running_stats=False)),
    "instance norm": layer(lambda: nn.InstanceNorm2d(8, affine=True)),
    "prelu": layer(lambda: nn.PReLU(8)),
    "rms norm": layer(
        lambda: nn.Sequential(Function(lambda x: x.movedim(1, -1)), nn.RMSNorm(8), Function(lambda x: x.movedim(-1, 1)))
    ),
    "circular": layer(lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")),
    "same": layer(lambda: nn.Conv2d(8, 8, 5, padding="same", dilation=2)),
    "depthwise transposed": layer(lambda: nn.ConvTranspose2d(8, 8, 3, groups=8)),
    "unfold": layer(
        lambda: nn.Sequential(nn.Unfold(3, padding=1), Function(lambda x: x.view(x.size(0), -1, 8, 8)), conv(72, 8, 1))
    ),
    "upsample": layer(lambda: nn.Upsample(scale_factor=2, mode="bilinear")),
    "softmax of channels": layer(lambda: nn.Softmax(dim=1)),
    "matrix product": between(lambda x: (x.flatten(2) @ x.flatten(2).transpose(1, 2) @ x.flatten(2)).view_as(x) * 0.01),
    "channel count": between(lambda x: x / x.shape[1]),
    "channel count by len": between(lambda x: x * len(x[0])),
    "batch by len": between(lambda x: x.reshape(len(x), -1, 8, 8)),
    "channel count by ones": between(lambda x: x * torch.ones(x.size(1), dtype=x.dtype).sum()),
    "channel count by bias": between(lambda x: x + torch.full((x.size(1), 1, 1), 0.5, dtype=x.dtype).cumsum(0)),
    "eye": between(lambda x: torch.einsum("nchw,cd->ndhw", x, torch.eye(x.size(1), dtype=x.dtype))),
    "roll": between(lambda x: torch.roll(x, 3, 1)),
    "roll and add": between(lambda x: x + torch.roll(x, 1, 1)),
    "shift and add": between(lambda x: x + torch.cat([x[:, 1:], x[:, :1]], 1)),
    "flip and add": between(lambda x: x + x.flip(1)),
    "tile": between(lambda x: x.repeat(1, 2, 1, 1)[:, : x.size(1)]),
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

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, WIDTH, 3), nn.Conv2d(WIDTH, WIDTH, 3), nn.Conv2d(WIDTH, 8, 3)

    def between(self, h: Tensor) -> Tensor:
        return h.relu()

    def forward(self, x: Tensor) -> Any:
        return self.c(self.between(self.b(F.relu(self.a(x)))))


def centred(h: Tensor) -> Tensor:
    return h - h.mean(1, keepdim=True)


def standardised(weight: Tensor) -> Tensor:
    return weight - weight.mean((1, 2, 3), keepdim=True)


class ForTensors(Plain):
    def between(self, h: Tensor) -> Tensor:
        return centred(h) if isinstance(h, torch.Tensor) else h


class ForExactTensors(Plain):
    def between(self, h: Tensor) -> Tensor:
        return centred(h) if type(h) is torch.Tensor else h


class WidthOnlyInTraining(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h * torch.ones(1, WIDTH, 1, 1, dtype=h.dtype) if self.training else h


class CentredInTraining(Plain):
    def between(self, h: Tensor) -> Tensor:
        return centred(h) if self.training else h


class Asserted(Plain):
    def between(self, h: Tensor) -> Tensor:
        torch._assert(h.shape[1] == WIDTH, "another width")
        return h


class OutChannels(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h.relu() / self.b.out_channels**0.5


class InChannels(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h.relu() * self.c.in_channels


class WithNorm(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.BatchNorm2d(WIDTH)
        self.n.running_var.uniform_(0.5, 2.0)


class Variance(WithNorm):
    def between(self, h: Tensor) -> Tensor:
        return self.n(h) * self.n.running_var.mean()


class FirstParameter(WithNorm):
    def between(self, h: Tensor) -> Tensor:
        return self.n(h) * next(self.b.parameters()).abs().mean()


class StateDict(WithNorm):
    def between(self, h: Tensor) -> Tensor:
        return self.n(h) + self.n.state_dict()["running_var"].sum()


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


class Softplus(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x)


def with_layer(name: str, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Plain()
        setattr(model, name, make())
        return model

    return build


def with_activation(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Plain()
        model.act = make()
        model.between = types.MethodType(lambda self, h: self.act(h), model)
        return model

    return build


def flagged_pair() -> nn.Module:
    model = Plain()
    model.a, model.b, model.c = Flagged(3, WIDTH, 3), Flagged(WIDTH, WIDTH, 3), Flagged(WIDTH, 8, 3, centre=True)
    return model


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
    nn.utils.parametrize.register_parametrization(layer, "weight", Softplus())
    return layer


class RowsByWidth(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.b(F.relu(self.a(x)))
        return self.c(h[:, :, h.size(1) - 8 : h.size(1) - 4, :])


class Remembers(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.seen: list[Any] = []

    def between(self, h: Tensor) -> Tensor:
        self.last = h
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


class Counting(Plain):
    """A buffer that every call changes, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def between(self, h: Tensor) -> Tensor:
        self.calls += 1
        return h.relu()


class MaxNorm(nn.Conv2d):
    """Clips its own weights on every call."""

    def forward(self, input: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.1)
        return super().forward(input)


WRONG: dict[str, Callable[[], nn.Module]] = {
    "isinstance": ForTensors,
    "type is Tensor": ForExactTensors,
    "width only in training": WidthOnlyInTraining,
    "centred in training": CentredInTraining,
    "torch._assert": Asserted,
    "out_channels": OutChannels,
    "in_channels": InChannels,
    "running_var": Variance,
    "next(parameters())": FirstParameter,
    "state_dict": StateDict,
    "own _conv_forward": with_layer("b", lambda: OwnConvForward(WIDTH, WIDTH, 3)),
    "flag outside repr": flagged_pair,
    "forward hook": lambda: hooked("b"),
    "forward pre-hook": lambda: hooked("c", before=True),
    "patched instance": patched,
    "patched by closure": patched_by_closure,
    "parametrised PReLU": with_activation(parametrised_prelu),
    "scaled ReLU": with_activation(lambda: ScaledReLU(WIDTH)),
    "rows by width": RowsByWidth,
    "attribute set in forward": Remembers,
    "recurrent state": Stateful,
    "counting buffer": Counting,
    "max norm": with_layer("b", lambda: MaxNorm(WIDTH, WIDTH, 3)),
}
