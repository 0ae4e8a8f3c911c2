"""Layers that are called several times lose the channels that no call needs. Layers that no call needs hold nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as sc
from tests.graph.dags import randomised
from tests.graph.test_recording import IMAGE, Widths, is_exact
from tests.nets import Chain, conv, pooled


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b, self.fc = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6), nn.Linear(12, 5)
        randomised(self.bn)

    def branch(self, x: Tensor) -> Tensor:
        return pooled(self.b(F.relu(self.bn(self.a(x)))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cat([self.branch(x), self.branch(2 * x + 1)], 1))


class SharedHead(nn.Module):
    """One head on every level of a pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q, self.h1, self.h2 = conv(3, 8), conv(8, 8, stride=2), conv(8, 7), conv(7, 4)

    def forward(self, x: Tensor) -> list[Tensor]:
        p = self.p(x)
        return [self.h2(F.relu(self.h1(level))) for level in (p, self.q(p))]


class SharedGate(nn.Module):
    """As CBAM: one gate on the mean and on the maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 8), conv(8, 6), nn.Linear(6, 5)
        self.down, self.up = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        gate = sum(self.up(F.relu(self.down(y))) for y in (x.mean((2, 3)), x.amax((2, 3))))
        return self.fc(pooled(self.b(x * torch.sigmoid(gate)[:, :, None, None])))


class FedToItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.again, self.fc = conv(3, 8), conv(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        for _ in range(3):
            x = F.relu(self.again(x))
        return self.fc(pooled(x))


class SharedBlock(nn.Module):
    """A residual block, twice on one stream: its reader selects the same channels in both calls."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.inner, self.outer = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6), conv(6, 8)
        self.single, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 5)
        randomised(self.bn)
        randomised(self.single)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.outer(F.relu(self.inner(F.relu(self.bn(x)))))
        x = x + self.outer(F.relu(self.inner(F.relu(self.single(x)))))
        return self.fc(pooled(x))


class OneNorm(nn.Module):
    """One norm without parameters on two tensors: they lose the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = conv(3, 8), conv(3, 8), nn.BatchNorm2d(8, affine=False)
        self.c, self.d = conv(8, 4), conv(8, 4)
        randomised(self.norm)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.c(self.norm(self.a(x))), self.d(self.norm(self.b(x)))


class OnPixelsToo(nn.Module):
    """The second call of `mix` reads pixels, where the rules cannot follow: `mix` keeps its inputs in both calls."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.mix, self.b, self.fc = conv(3, 8), nn.Linear(8, 8), conv(8, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.mix(x.movedim(1, -1)).movedim(-1, 1)
        return self.fc(pooled(self.b(self.mix(x))))


CASES: dict[str, tuple[type[nn.Module], Widths]] = {
    "siamese": (Siamese, {"a:out": (8, 1), "b:out": (6, 1)}),
    "shared head": (SharedHead, {"p:out": (8, 1), "h1:out": (7, 1)}),
    "shared gate": (SharedGate, {"a:out": (8, 1), "down:out": (4, 1), "b:out": (6, 1)}),
    "fed to itself": (FedToItself, {"a:out": (8, 1)}),
    "shared block": (SharedBlock, {"inner:in": (8, 1), "inner:out": (6, 1), "fc:in": (8, 1)}),
    "one norm": (OneNorm, {"a:out": (8, 1)}),
    "on pixels too": (OnPixelsToo, {"b:out": (6, 1)}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_called_several_times(name: str) -> None:
    torch.manual_seed(0)
    build, widths = CASES[name]
    is_exact(build(), IMAGE, widths)


def test_the_cost_counts_every_call() -> None:
    graph = sc.trace(SharedHead().eval(), IMAGE.float())
    # p and h1, h2 at 8x8 positions, q and h1, h2 again at 4x4
    assert graph.macs == 9 * (3 * 8 * 64 + 8 * 8 * 16 + (8 * 7 + 7 * 4) * 80)


class TwoNamed(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.again, self.listed = self.a, nn.ModuleList([self.a, self.b])


class Unused(Chain):
    """Layers that neither eval nor training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.other = conv(4, 4), nn.Linear(6, 6)


@pytest.mark.parametrize("build", [TwoNamed, Unused])
def test_names_and_unused_layers_hold_nothing(build: type[nn.Module]) -> None:
    torch.manual_seed(0)
    is_exact(build(), IMAGE, {"a:out": (4, 1), "b:out": (6, 1)})


class Undecided(Chain):
    """Training cannot be followed up to the layer that only training calls."""

    def __init__(self) -> None:
        super().__init__()
        self.late = conv(4, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.relu(self.bn(self.a(image)))
        if self.training and image.sum() > 0:
            x = self.late(x)
        return self.fc(pooled(self.relu(self.b(x))))


def test_a_layer_that_training_might_call_holds_what_it_could_read() -> None:
    graph = sc.trace(Undecided().eval(), IMAGE.float())
    assert list(graph.units) == ["b:out"]
    assert "late" in graph.frozen["a"]
