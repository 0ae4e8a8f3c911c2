"""What a network computes, in a few numbers: two networks may have the same layers and weights, and another forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.batches import call
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.errors import RunError
from secateur.running.folder import ANSWERS, CONFIG, RunFolder

NUMBERS = 8  # of the output
CLOSE = 1e-2  # of the largest: other devices and precisions give other roundings


def network_answers(model: nn.Module, example: Any) -> list[float] | None:
    """A few numbers of the output on noise of the example's shape, the same noise each time.

    None if the network does not accept noise, or gives something else each time.
    """
    try:
        first, again = (_answers(model, example) for _ in range(2))
    except Exception:  # noqa: BLE001  (inputs that may not be random, such as positions)
        return None
    return first if first and _close(first, again) else None


def refuse_other_network(folder: RunFolder, now: list[float] | None) -> None:
    """RunError if the run in the folder is that of a network that computes something else than `now` says."""
    before = folder.read(CONFIG).get(ANSWERS)
    if not isinstance(before, list) or now is None or _close(before, now):
        return
    raise RunError(
        f"{folder.path} holds a run of another network: it has the same layers and weights, but another output on the "
        f"same input ({before[0]:.4g}, ... there and {now[0]:.4g}, ... now). Was its forward changed? Use another "
        "folder, or the same network to continue that run"
    )


@torch.no_grad()
def _answers(model: nn.Module, example: Any) -> list[float]:
    draw = torch.Generator().manual_seed(0)  # on the CPU, so that all devices get the same noise

    def noise(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.randn(value.shape, generator=draw).to(value) if value.is_floating_point() else value.clone()

    with generators_kept(0), evaluating(model):
        output = call(model, tree_map(noise, example))
    numbers = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    flat = numbers[0].flatten().double().cpu()
    places = np.linspace(0, len(flat) - 1, min(NUMBERS, len(flat))).round().astype(int)
    return [float(f"{value:.6g}") for value in flat[places].tolist()]


def _close(a: list[float], b: list[float]) -> bool:
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=0, atol=CLOSE * max(map(abs, a))))
