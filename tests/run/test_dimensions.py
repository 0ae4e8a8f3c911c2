"""Networks of signals (1-D) and volumes (3-D) and of several inputs go through the whole package."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.util.batches import order_channels_last

LAYERS = {1: (nn.Conv1d, nn.BatchNorm1d, nn.AdaptiveAvgPool1d), 3: (nn.Conv3d, nn.BatchNorm3d, nn.AdaptiveAvgPool3d)}


class Block(nn.Module):
    """A residual block between two layers, in 1 or 3 dimensions."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        conv, norm, pool = LAYERS[dims]
        self.stem, self.norm = conv(2, 8, 3, padding=1), norm(8)
        self.inner, self.outer = conv(8, 12, 3, padding=1), conv(12, 8, 1)
        self.pool, self.fc = pool(1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.outer(torch.relu(self.inner(x))))
        return self.fc(self.pool(x).flatten(1))


def batches(dims: int, count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Noise; the second class is brighter."""
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        labels = torch.randint(0, 2, (16,), generator=draw)
        images = torch.randn(16, 2, *[4] * dims, generator=draw)
        pairs.append((images + labels.reshape(-1, *[1] * (dims + 1)), labels))
    return pairs


def made(dims: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(dims)
        return Block(dims)


@pytest.mark.parametrize("dims", [1, 3])  # images have two everywhere else
def test_all_steps(dims: int, tmp_path: Path) -> None:
    untrained = made(dims)
    before = copy.deepcopy(untrained.state_dict())
    model = pr.fit(untrained, batches(dims, 8, 0), epochs=3, lr=0.05).model.eval()
    assert all(torch.equal(before[name], tensor) for name, tensor in untrained.state_dict().items())
    assert pr.evaluate(model, batches(dims, 4, 1)).quality > 0.8
    assert all(tensor.is_contiguous() for tensor in model.state_dict().values())
    images = batches(dims, 4, 0)
    graph = pr.trace(model, images[0][0][:1])
    scores = pr.score(graph, images, metric="all")
    assert set(scores) == set(pr.METRICS)
    plan = pr.uniform(graph, scores["gsd_reader"], ratio=0.5)
    with pr.zeroed(graph, plan):
        expected = model(images[0][0])
    assert torch.allclose(pr.prune(graph, plan)(images[0][0]), expected, atol=1e-5)
    assert pr.repair(graph, plan, images)(images[0][0]).shape == (16, 2)
    how = {"repair": "bn", "epochs": 1, "lr": 0.02, "timing": False}
    result = pr.compress(model, batches(dims, 8, 0), batches(dims, 4, 1), target=0.4, folder=tmp_path, **how)
    assert result.summary["removed"]["macs"] >= 0.35
    assert torch.equal(pr.load(tmp_path, made(dims)).eval()(images[0][0]), result.model.eval()(images[0][0]))
    ordered = order_channels_last(made(dims))  # only 4-dimensional tensors change their order
    assert all(torch.equal(before[name], tensor) for name, tensor in ordered.state_dict().items())


class Pair(nn.Module):
    """An image and a signal by name; the outputs are in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.signal = nn.Conv2d(2, 8, 3, padding=1), nn.Conv1d(2, 8, 3, padding=1)
        self.mix, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 2)

    def forward(self, image: Tensor, signal: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.image(image)) + torch.relu(self.signal(signal)).unsqueeze(2)
        return {"logits": self.fc(torch.relu(self.mix(x)).mean((2, 3)))}


def test_networks_with_several_inputs_need_no_example(tmp_path: Path) -> None:
    def pairs(count: int, seed: int) -> list[tuple[object, Tensor]]:
        return [({"image": x, "signal": x.mean(2)}, labels) for x, labels in batches(2, count, seed)]

    model = pr.fit(Pair(), pairs(8, 0), epochs=2, lr=0.05).model
    result = pr.compress(model, pairs(8, 0), pairs(4, 1), target=0.3, folder=tmp_path, timing=False)
    assert result.summary["removed"]["macs"] >= 0.25
    image = batches(2, 1, 2)[0][0]
    one, other = (net.eval()(image, image.mean(2)) for net in (result.model, pr.load(tmp_path, Pair())))
    assert torch.equal(one["logits"], other["logits"])
