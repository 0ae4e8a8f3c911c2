"""Small networks and batches for the tests of scoring."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as pr

CLASSES = 5


class CalledOften(nn.Module):
    """One layer reads three tensors, of which another layer reads one too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.often, self.other = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.Conv2d(4, 6, 3)
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        y = (
            self.other(h) * self.often(h)
            + self.often(h.tanh())
            + self.often(h[:, :, 1:, 1:]).mean((2, 3), keepdim=True)
        )
        return self.fc(torch.relu(y).mean((2, 3)))


class Scaled(nn.Conv2d):
    """A convolution that is no linear map with its own weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0.5


class Shortcut(nn.Module):
    """A stem, a residual block of two convolutions and a classifier; batch norms, pooling and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1, bias=False)
        self.fc = nn.Linear(3 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.stem(x))), 2)
        h = F.relu(h + self.second(torch.sigmoid(self.first(h))))
        return self.fc(F.avg_pool2d(h, 2).flatten(1))


def chain() -> nn.Sequential:
    """Its first unit is read by a convolution with 54 inputs and 4 outputs."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    ).double()
    nn.init.uniform_(net[3].running_var, 0.5, 2.0)
    nn.init.normal_(net[3].running_mean)
    return net.eval()


def settled(model: nn.Module, shape: tuple[int, ...] = (3, 8, 8), dtype: torch.dtype = torch.float64) -> nn.Module:
    """The network with weights from a fixed seed and batch norms that do something, in eval mode."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator) * 0.2)
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
    return model.to(dtype).eval()


def batches(
    images: int = 30,
    batch: int = 7,
    shape: tuple[int, ...] = (3, 8, 8),
    dtype: torch.dtype = torch.float64,
    classes: int = CLASSES,
    seed: int = 0,
) -> list[tuple[Tensor, Tensor]]:
    """Images whose brightness and contrast depend on their class, every class at least twice."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(images) % classes
    labels = labels[torch.randperm(images, generator=generator)]
    noise = torch.randn(images, *shape, generator=generator, dtype=torch.float64)
    extra = (1,) * len(shape)
    pictures = noise * (0.5 + 0.3 * labels.double().view(-1, *extra)) + 0.4 * labels.double().view(-1, *extra)
    pictures = pictures.to(dtype)
    return [(pictures[i : i + batch], labels[i : i + batch]) for i in range(0, images, batch)]


def entering(model: nn.Module, layer: str, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The tensor that enters a layer, for all images."""
    seen: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    with torch.no_grad():
        for images, _ in batches:
            model(images)
    hook.remove()
    return torch.cat(seen)


def graph_of(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> pr.ChannelGraph:
    """A settled network, traced with images of 8 x 8 pixels."""
    return pr.trace(settled(build(), dtype=dtype), torch.zeros(1, 3, 8, 8, dtype=dtype))


def pictures(count: int, side: int = 6, seed: int = 0) -> Tensor:
    """Noise."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=draw, dtype=torch.float64)
