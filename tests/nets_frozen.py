"""Tiny networks of which a part may not be pruned, each with the answer: what is left, and what must be named.

The first convolution of most is the frozen one; `b` and the classifier show that the rest of the network stays free.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.nets import Chain, Flattened, Tiny, conv, pooled, units


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.s, self.t = conv(3, 4), conv(4, 4), conv(4, 4)
        self.b, self.fc = conv(4, 6, 1), nn.Linear(6, 5)
        self.t.weight = self.s.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.b(F.relu(self.t(F.relu(self.s(self.a(x)))))))))


class LiteralView(Flattened):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(F.relu(self.conv(x)).view(-1, 64))))


class LiteralSplit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(3, 8, 1), conv(3, 4, 1), conv(5, 4, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.split(self.a(x), [3, 5], dim=1)
        return self.fc(pooled(torch.cat([self.b(left), self.c(right)], dim=1)))


class LiteralSlice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 8, 1), conv(4, 5, 1), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.b(self.a(x)[:, 2:6])))


class UnknownOp(Chain):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.b(torch.cumsum(self.a(x), dim=1))))


class LayerNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = conv(3, 4), nn.LayerNorm(4), nn.Linear(4, 5)
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return self.head(pooled(self.fc2(F.gelu(self.fc1(x))).permute(0, 3, 1, 2)))


class GroupNormed(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.b(F.relu(self.norm(self.a(x))))))


class FunctionalConv(nn.Module):
    """The weight is a bare parameter: it counts, but no layer is there to lose a filter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.weight = conv(3, 4), nn.Parameter(torch.ones(4, 4, 1, 1))
        self.b, self.fc = conv(4, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.b(F.relu(F.conv2d(self.a(x), self.weight))))))


class WeightNormed(nn.Module):
    """The norm of a filter runs over its inputs, so a zeroed input is not a removed one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = conv(3, 4), nn.utils.parametrizations.weight_norm(conv(4, 4))
        self.b, self.fc = conv(4, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.b(F.relu(self.n(F.relu(self.a(x))))))))


class StandardizedConv(nn.Conv2d):
    """A subclass that works on its own weights, as weight-standardised convolutions do."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight / weight.std((1, 2, 3), keepdim=True), self.bias, padding=self.padding)


class Standardized(WeightNormed):
    def __init__(self) -> None:
        super().__init__()
        self.n = StandardizedConv(4, 4, 3, padding=1)


class AuxiliaryHead(nn.Module):
    """The head that only training sees reads four channels, so whatever is four wide may be its input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc, self.aux = conv(3, 4), conv(4, 6), nn.Linear(6, 5), conv(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = F.relu(self.a(x))
        logits = self.fc(pooled(F.relu(self.b(x))))
        if self.training:
            return logits, pooled(self.aux(x))
        return logits


class TwoOutputs(Chain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.bn(self.a(x)))
        return self.fc(pooled(F.relu(self.b(x)))), x


class NamedOutputs(Chain):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.relu(self.bn(self.a(x)))
        return {"features": x, "logits": self.fc(pooled(F.relu(self.b(x))))}


B_FREE = units("b:out 6: b -> fc")
CHAIN = {"macs": 6912 + 13824 + 30, "params": 108 + 216 + 30, "units": B_FREE, "frozen": ("a",)}
OUTPUTS_GO: dict[str, Any] = {
    "macs": 6912 + 9216 + 1536 + 30,
    "params": 108 + 144 + 24 + 30,
    "units": units("a:out 4: a -> n", "n:out 4: n -> b", "b:out 6: b -> fc"),
}

FROZEN_NETS: dict[str, Tiny] = {
    "tied": Tiny(Tied, 6912 + 2 * 9216 + 1536 + 30, 306, B_FREE, frozen=("a", "s", "t")),
    "literal_view": Tiny(
        LiteralView, 1728 + 384 + 30, 108 + 384 + 30, units("fc1:out 6: fc1 -> fc2"), frozen=("conv",)
    ),
    "literal_split": Tiny(
        LiteralSplit,
        1536 + 768 + 1280 + 40,
        24 + 12 + 20 + 40,
        units("b:out 4: b -> fc", "c:out 4: c -> fc"),
        frozen=("a",),
    ),
    "literal_slice": Tiny(LiteralSlice, 1536 + 1280 + 25, 24 + 20 + 25, units("b:out 5: b -> fc"), frozen=("a",)),
    "unknown_op": Tiny(UnknownOp, **CHAIN),
    "layer_norm": Tiny(
        LayerNormed,
        6912 + 2048 + 2048 + 20,
        108 + 32 + 32 + 20,
        units("fc1:out 8: fc1 -> fc2", "fc2:out 4: fc2 -> head"),
        frozen=("conv",),
    ),
    "group_norm": Tiny(GroupNormed, **CHAIN),
    "functional_conv": Tiny(FunctionalConv, 6912 + 1024 + 1536 + 30, 108 + 16 + 24 + 30, B_FREE, frozen=("a",)),
    "weight_norm": Tiny(WeightNormed, **OUTPUTS_GO),
    "standardized": Tiny(Standardized, **OUTPUTS_GO),
    "auxiliary_head": Tiny(AuxiliaryHead, **CHAIN),
    "two_outputs": Tiny(TwoOutputs, **CHAIN),
    "named_outputs": Tiny(NamedOutputs, **CHAIN),
}
