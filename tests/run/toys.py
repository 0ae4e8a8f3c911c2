"""A small trained residual network and data for it, the same each time."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.run.compress import Compressed, compress
from prunus.run.folder import RunFolder
from prunus.train.fit import fit
from prunus.train.settings import Preset

CLASSES = 4
QUICK: dict[str, Any] = {"epochs": 1, "lr": 0.02, "alpha": 1.0, "repair": "none", "distill": False, "timing": False}
QUICK |= {"round_to": 1}  # few channels: any width
EXAMPLE = torch.zeros(1, 3, 6, 6)
# stem 8x3x9x36, conv1 24x8x9x36, conv2 8x24x9x36, wide 16x8x9x16, fc 256x4
MACS, PARAMS = 7776 + 62208 + 62208 + 18432 + 1024, 216 + 1728 + 1728 + 1152 + 1024
STEP = (8 * 9 * 36 + 8 * 9 * 36) / MACS  # a channel of conv1:out is 3.4% of the network: how near a goal can be met


def batches(count: int, size: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Noise, and one of four corners brighter than the others: the class."""
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        images, labels = torch.randn(size, 3, 6, 6, generator=draw), torch.randint(0, CLASSES, (size,), generator=draw)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[:, 3 * (label // 2) :, 3 * (label % 2) :][:, :3, :3] += 0.45
        pairs.append((images, labels))
    return pairs


TRAIN, HOLDOUT, TEST = batches(12, 16, seed=0), batches(4, 30, seed=3), batches(2, 40, seed=5)


class Small(nn.Module):
    """For 6x6 images: stem, one residual block, a wider layer, a classifier."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = (nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 8), (8, 24), (24, 8)))
        self.wide, self.fc = nn.Conv2d(8, 16, 3), nn.Linear(16 * 16, CLASSES)
        self.bn1, self.bn2, self.drop = nn.BatchNorm2d(8), nn.BatchNorm2d(16), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.stem(x)))
        x = torch.relu(x + self.conv2(torch.relu(self.conv1(x))))
        return self.fc(self.drop(torch.relu(self.bn2(self.wide(x))).flatten(1)))


def fresh(dropout: float = 0.0) -> nn.Module:
    """The network with its first weights."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Small(dropout)


@functools.cache
def _trained() -> nn.Module:
    return fit(fresh(), TRAIN, preset=Preset("toy", epochs=12, lr=0.05, batch_size=16, schedule="cosine")).model.eval()


def trained(dropout: float = 0.0) -> nn.Module:
    """The network, trained on TRAIN."""
    network = Small(dropout).eval()
    network.load_state_dict(copy.deepcopy(_trained().state_dict()))
    return network


def run(folder: Path | RunFolder | None = None, model: nn.Module | None = None, **changes: Any) -> Compressed:
    """A quick run; by default two rounds to 40% fewer MACs."""
    goals = {"target", "speedup", "macs", "params", "max_drop", "ratio"}
    words = {**({} if goals & changes.keys() else {"target": 0.4, "rounds": 2}), **QUICK, **changes}
    return compress(model or trained(), TRAIN, HOLDOUT, folder=folder, **words)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
