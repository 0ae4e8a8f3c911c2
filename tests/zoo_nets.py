"""How networks of other libraries are built for tests: random weights, but signals that stay alive."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from tests import proof
from tests.networks import Network, from_torchvision

# `pip install "prunus[zoo]"` has the first two; `prunus[networks]` the others.
LIBRARIES = [
    "torchvision",
    "timm",
    "segmentation_models",
    "monai",
    "pytorchcv",
    "transformers",
    "kornia",
    "ultralytics",
]
# Layers that start as a (near) identity would hide what the branch before them does.
BRANCH_SCALES = ("gamma", "layer_scale", "skipinit_gain", "ls")


def torchvision_models() -> Any:
    return from_torchvision.library()


def import_libraries(names: list[str]) -> None:
    """Import the libraries of these networks now; torchvision first, as most of them import it themselves."""
    from_torchvision.library()
    for library in {name.split(":")[0] for name in names}:
        importlib.import_module(f"tests.networks.from_{library}").library()


@cache
def networks(library: str) -> dict[str, Network]:
    """The table of a library: name -> network."""
    return importlib.import_module(f"tests.networks.from_{library}").networks()  # type: ignore[no-any-return]


def zoo_names() -> list[str]:
    """All networks by their full names, `torchvision:resnet18`."""
    return [f"{library}:{name}" for library in LIBRARIES for name in networks(library)]


def entry(name: str) -> Network:
    library, short = name.split(":")
    return networks(library)[short]


def create(name: str) -> nn.Module:
    """A network by its full name, without trained weights."""
    from_torchvision.library()
    return entry(name).make()


def example(name: str, batch: int = 2, dtype: torch.dtype = torch.float64) -> Any:
    """A tensor, or a tuple of them for a network with several inputs."""
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(batch, *shape, dtype=dtype, generator=generator) for shape in entry(name).shapes]
    return inputs[0] if len(inputs) == 1 else tuple(inputs)


def prepared(name: str) -> tuple[nn.Module, Any]:
    """A network with random weights and an example, in the type that it is examined in."""
    image = example(name, dtype=entry(name).dtype)
    return randomise(create(name).to(entry(name).dtype), image), image


@torch.no_grad()
def randomise(model: nn.Module, image: Any, seed: int = 0) -> nn.Module:
    """Random weights and statistics such that every branch counts and rounding errors are not amplified.

    Convolutions are He-initialised, norms get random scales and offsets, the last norm of each residual branch is
    scaled by 0.2; statistics come from one forward on noise and are then shaken, so that signals keep their size.
    """
    torch.manual_seed(seed)
    for module in model.modules():
        shake(module)
    for norm in last_norms(model):
        norm.weight.mul_(0.2)
        norm.bias.mul_(0.2)
    settle(model, image)
    return model.eval()


def shake(module: nn.Module) -> None:
    layer = isinstance(module, (nn.modules.conv._ConvNd, nn.Linear))
    for name, parameter in module.named_parameters(recurse=False):
        if layer and name == "weight":
            parameter.normal_(0.0, (2.0 / max(parameter[0].numel(), 1)) ** 0.5)
        elif any(name.startswith(word) for word in BRANCH_SCALES):
            parameter.uniform_(0.1, 0.3)
        elif name in ("weight", "gain"):
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(0.0, 0.2)


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and module.weight is not None


def last_norms(model: nn.Module) -> list[nn.Module]:
    """The last norm of each module that holds a residual branch; by its class's name, as there is no other sign."""
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        kind = type(module).__name__
        if re.search("Bottle|BasicBlock|Residual|MBConv|ResBlock|ResBottleneck|Block$|Bottle2neck|PreAct", kind):
            branch = [m for n, m in module.named_modules() if is_norm(m) and not re.search("downsample|shortcut", n)]
            if branch and "Dense" not in kind:
                found[id(branch[-1])] = branch[-1]
    return list(found.values())


def settle(model: nn.Module, image: Any) -> None:
    """One forward in eval mode; each norm takes its statistics, shaken, from what enters it just then."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    handles = [norm.register_forward_pre_hook(take_statistics) for norm in norms]
    model.eval()
    try:
        proof.call(model, image)
    finally:
        for handle in handles:
            handle.remove()


def take_statistics(norm: nn.Module, arguments: tuple[Tensor, ...]) -> None:
    x = arguments[0]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean, noise = norm.running_mean, torch.randn_like(norm.running_mean)
    # One variance for all channels: a small map has channels that hardly vary, and dividing by that amplifies.
    variance = x.var(axes).nan_to_num().mean().clamp(min=0.01)
    norm.running_var.copy_(variance * torch.empty_like(mean).uniform_(0.7, 1.4))
    mean.copy_(x.mean(axes) + 0.2 * noise * variance.sqrt())
