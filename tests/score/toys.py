"""Small networks and batches for the tests of scoring."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
