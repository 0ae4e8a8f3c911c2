"""Networks that deceive whoever follows their channels: each must be pruned exactly, be left alone or be refused."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


# ------------------------------------------------------------------------------------------------ another path


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


# ------------------------------------------------------------------------------------------ facts of other modules


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


# ------------------------------------------------------------------------------------------------ layers in disguise


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


class SharedStatistics(nn.Module):
    """One norm without weights, called on two tensors that may be cut differently."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Conv2d(3, WIDTH, 3), nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH, affine=False)
        self.n.running_var.uniform_(0.5, 2.0)
        self.c, self.d = nn.Conv2d(WIDTH, 8, 3), nn.Conv2d(WIDTH, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.c(self.n(self.a(x))), self.d(self.n(self.b(x)))


# ------------------------------------------------------------------------------------------------ positions


class FoldedAndPicked(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.b(F.relu(self.a(x)))
        return h.view(h.size(0), 2, -1, *h.shape[2:])[:, :, 1], self.c(h)


class FoldedAndChunked(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.b(F.relu(self.a(x)))
        return h.view(h.size(0), 2, -1, *h.shape[2:]).chunk(2, 2)[0].sum(1), self.c(h)


class RowsByWidth(Plain):
    def forward(self, x: Tensor) -> Any:
        h = self.b(F.relu(self.a(x)))
        return self.c(h[:, :, h.size(1) - 8 : h.size(1) - 4, :])


class Named(Plain):
    """Arguments of which one name begins like another."""

    def forward(self, x: Tensor, h: Tensor | None = None, h_add: Tensor | None = None) -> Any:
        return self.c(F.relu(self.b(F.relu(self.a(x))) + h_add))


# ------------------------------------------------------------------------------------------------ state


class Remembers(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None
        self.seen: list[Any] = []

    def between(self, h: Tensor) -> Tensor:
        self.last = h
        self.seen.append(h)
        return h.relu()


class Recurrent(Plain):
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


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    example: Callable[[], Any] = lambda: torch.randn(2, 3, 16, 16, dtype=torch.float64)


def named_arguments() -> dict[str, Tensor]:
    return {
        "x": torch.randn(2, 3, 16, 16, dtype=torch.float64),
        "h_add": torch.randn(2, WIDTH, 12, 12, dtype=torch.float64),
    }


WRONG: dict[str, Case] = {
    "isinstance": Case(ForTensors),
    "type is Tensor": Case(ForExactTensors),
    "width only in training": Case(WidthOnlyInTraining),
    "centred in training": Case(CentredInTraining),
    "torch._assert": Case(Asserted),
    "out_channels": Case(OutChannels),
    "in_channels": Case(InChannels),
    "running_var": Case(Variance),
    "next(parameters())": Case(FirstParameter),
    "state_dict": Case(StateDict),
    "own _conv_forward": Case(with_layer("b", lambda: OwnConvForward(WIDTH, WIDTH, 3))),
    "flag outside repr": Case(flagged_pair),
    "forward hook": Case(lambda: hooked("b")),
    "forward pre-hook": Case(lambda: hooked("c", before=True)),
    "patched instance": Case(patched),
    "patched by closure": Case(patched_by_closure),
    "parametrised PReLU": Case(with_activation(parametrised_prelu)),
    "scaled ReLU": Case(with_activation(lambda: ScaledReLU(WIDTH))),
    "shared statistics": Case(SharedStatistics),
    "folded and picked": Case(FoldedAndPicked),
    "folded and chunked": Case(FoldedAndChunked),
    "rows by width": Case(RowsByWidth),
    "names of arguments": Case(Named, named_arguments),
    "attribute set in forward": Case(Remembers),
    "recurrent state": Case(Recurrent),
    "counting buffer": Case(Counting),
    "max norm": Case(with_layer("b", lambda: MaxNorm(WIDTH, WIDTH, 3))),
}
