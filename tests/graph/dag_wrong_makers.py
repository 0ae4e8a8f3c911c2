"""What may be drawn of networks that deceive a pruner: layers in disguise, facts of other modules, odd positions."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from tests.graph.dags import Builder
from tests.graph.wrong_nets import Flagged, OwnConvForward, ScaledReLU, centred, standardised

Maker = Callable[[Builder], None]


def _patched(layer: nn.Conv2d) -> nn.Conv2d:
    """A forward of its own on one instance."""

    def forward(self: nn.Conv2d, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.weight), self.bias)

    layer.forward = types.MethodType(forward, layer)
    return layer


def _centre_output(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return centred(output)


def _centre_input(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (centred(args[0]), *args[1:])


def _look(module: nn.Module, args: object, output: Tensor) -> None:
    """A hook that only looks."""


def make_disguised(b: Builder) -> None:
    """A convolution that is not what its class says."""
    x = b.map()
    inputs, outputs = b.channels(x), b.choice((2, 4, 6))
    kind = b.choice(("conv_forward", "flag", "no_flag", "patched", "hook", "pre_hook", "looking_hook"))
    if kind == "conv_forward":
        layer: nn.Conv2d = OwnConvForward(inputs, outputs, 1)
    elif kind in ("flag", "no_flag"):
        layer = Flagged(inputs, outputs, 1, centre=kind == "flag")
    else:
        layer = nn.Conv2d(inputs, outputs, 1)
    made = b.layer(_patched(layer) if kind == "patched" else layer, x)
    del made  # hooks come after the first run, as a user's do
    if kind == "hook":
        layer.register_forward_hook(_centre_output)
    elif kind == "pre_hook":
        layer.register_forward_pre_hook(_centre_input)
    elif kind == "looking_hook":
        layer.register_forward_hook(_look)


def make_scaled_activation(b: Builder) -> None:
    x = b.map()
    b.layer(ScaledReLU(b.channels(x)), x)


def make_parametrised(b: Builder) -> None:
    x = b.map()
    layer = nn.PReLU(b.channels(x))
    made = b.layer(layer, x)
    del made
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    layer.eval()


def make_module_fact(b: Builder) -> None:
    """A number of a layer as a factor: its width, or its statistics."""
    facts = {
        "out_channels": [n for n, m in b.net.layers.items() if isinstance(m, nn.Conv2d)],
        "running_var": [n for n, m in b.net.layers.items() if isinstance(m, nn.BatchNorm2d)],
    }
    fact = b.choice(facts)
    if facts[fact]:
        b.module_fact(b.map(), b.choice(facts[fact]), fact)


def make_shared_norm(b: Builder) -> None:
    """A norm without weights for two tensors."""
    x = b.map()
    norm = nn.BatchNorm2d(b.channels(x), affine=False)
    b.layer(norm, x)
    name = list(b.net.layers)[-1]
    b.layer(name, b.like(x))


def make_folded(b: Builder) -> None:
    """A view that folds the channels, and a literal position in it."""
    x = b.map()
    channels = b.channels(x)
    if channels % 2 == 0 and channels > 2:
        b.add(b.choice(("folded_pick", "folded_chunk")), x)


def make_rows_by_width(b: Builder) -> None:
    b.add("rows_by_width", b.map())


WRONG_MAKERS: tuple[tuple[int, Maker], ...] = (
    (3, make_disguised),
    (1, make_scaled_activation),
    (1, make_parametrised),
    (2, make_module_fact),
    (1, make_shared_norm),
    (1, make_folded),
    (1, make_rows_by_width),
)
WRONG_BAG = [maker for weight, maker in WRONG_MAKERS for _ in range(weight)]
