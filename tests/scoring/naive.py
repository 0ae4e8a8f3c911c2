"""The metrics as the paper writes them: every map stored, numpy and loops, nothing of the code under test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import prunus as pr

Array = npt.NDArray[np.float64]
Batches = Sequence[tuple[Tensor, Tensor]]


def halves(values: Array, labels: Array) -> list[tuple[Array, Array, int, int]]:
    """For each class: activations of it, activations of the rest, and how many images each has. values is [N, d]."""
    parts = []
    for c in np.unique(labels):
        mine = labels == c
        parts.append((values[mine].ravel(), values[~mine].ravel(), int(mine.sum()), int((~mine).sum())))
    return parts


def gsd(values: Array, labels: Array, ridge: float = 0.05) -> float:
    total = 0.0
    parts = halves(values, labels)
    for p, q, _, _ in parts:
        v, w = np.var(p), np.var(q)
        total += 0.5 * (v / (w + ridge) + w / (v + ridge))
        total += 0.5 * (p.mean() - q.mean()) ** 2 / (v + w + ridge) - 1
    return total / len(parts)


def fdr(values: Array, labels: Array, ridge: float = 1e-4) -> float:
    parts = halves(values, labels)
    return sum((p.mean() - q.mean()) ** 2 / (np.var(p) + np.var(q) + ridge) for p, q, _, _ in parts) / len(parts)


def abs_snr(values: Array, labels: Array, ridge: float = 1e-4) -> float:
    parts = halves(values, labels)
    return sum(abs(p.mean() - q.mean()) / (np.std(p) + np.std(q) + ridge) for p, q, _, _ in parts) / len(parts)


def ttest(values: Array, labels: Array, ridge: float = 1e-4, noise_ridge: float | None = None) -> float:
    total = 0.0
    parts = halves(values, labels)
    for p, q, n, m in parts:
        noise = np.var(p) / n + np.var(q) / m
        noise += ridge / n + ridge / m if noise_ridge is None else noise_ridge
        total += abs(p.mean() - q.mean()) / np.sqrt(noise)
    return total / len(parts)


def act_variance(values: Array, labels: Array) -> float:
    return float(np.var(values))


def mean_square(values: Array) -> float:
    return float(np.mean(values**2))


def di(values: Array, labels: Array, rho: float = 1e-4) -> float:
    centre = values.mean(0)
    d = values.shape[1]
    scatter, between = np.zeros((d, d)), np.zeros((d, d))
    for f in values:
        scatter += np.outer(f - centre, f - centre)
    for c in np.unique(labels):
        mine = values[labels == c]
        gap = mine.mean(0) - centre
        between += len(mine) * np.outer(gap, gap)
    return float(np.trace(np.linalg.inv(scatter + rho * np.eye(d)) @ between))


def mmd(values: Array, labels: Array, sigma: float | str = 1.0) -> float:
    if sigma == "median":
        n = len(values)
        sigma = float(np.median([np.linalg.norm(values[i] - values[j]) for i in range(n) for j in range(i)]))
    assert isinstance(sigma, float)

    def kernel(x: Array, y: Array) -> float:
        return float(np.exp(-np.sum((x - y) ** 2) / (2 * sigma**2)))

    total = 0.0
    classes = np.unique(labels)
    for c in classes:
        p, q = values[labels == c], values[labels != c]
        total += sum(kernel(x, y) for x in p for y in p) / len(p) ** 2
        total += sum(kernel(x, y) for x in q for y in q) / len(q) ** 2
        total -= 2 * sum(kernel(x, y) for x in p for y in q) / (len(p) * len(q))
    return total / len(classes)


# ------------------------------------------------------------------------------------------------- of a real network


def inputs_of(model: nn.Module, layers: Sequence[str], batches: Batches) -> dict[str, Array]:
    """Everything that enters each layer, all batches together, in eval mode; side by side if it is called often."""
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}
    calls: dict[str, list[Tensor]] = {name: [] for name in layers}
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: calls[name].append(args[0].detach().clone())
        )
        for name in layers
    ]
    with torch.no_grad():
        for images, _ in batches:
            model(images)
            for name, seen in calls.items():
                kept[name].append(seen[0] if len(seen) == 1 else torch.cat([x.flatten(2) for x in seen], 2))
                seen.clear()
    for handle in handles:
        handle.remove()
    for module, mode in modes:
        module.training = mode
    return {name: torch.cat(parts).double().numpy() for name, parts in kept.items()}


def channel_values(model: nn.Module, reader: pr.Reader, stored: Array) -> list[Array]:
    """For each channel that a reader reads: its activations [N, positions]."""
    last = isinstance(model.get_submodule(reader.module), nn.Linear)
    channels_first = np.moveaxis(stored, -1, 1) if last else stored
    return [channels_first[:, positions].reshape(len(stored), -1) for positions in reader.inputs]


def labels_of(batches: Batches) -> Array:
    return torch.cat([labels for _, labels in batches]).numpy()


def reader_squares(model: nn.Module, reader: pr.Reader) -> list[float]:
    """For each channel that a reader reads: the squared norm of the weights it meets, by unit impulses.

    A layer without bias is linear: its answer to e_j at one pixel holds exactly the weights for input j.
    """
    layer = model.get_submodule(reader.module)
    out = []
    for positions in reader.inputs:
        total = 0.0
        for p in positions:
            total += _weights_for(layer, int(p))
        out.append(total)
    return out


def _weights_for(layer: nn.Module, position: int) -> float:
    weight = layer.weight.detach().double().numpy()
    if isinstance(layer, nn.ConvTranspose2d):
        return float((weight[position] ** 2).sum())
    groups = getattr(layer, "groups", 1)
    per_group = weight.shape[1]
    rows = weight.shape[0] // groups
    group = position // per_group
    return float((weight[group * rows : (group + 1) * rows, position % per_group] ** 2).sum())
