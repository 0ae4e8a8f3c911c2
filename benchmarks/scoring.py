"""What scoring costs, as ratios within one run: `python benchmarks/scoring.py`.

A pass that scores every unit by every moment metric, beside a plain forward pass over the same images: both take turns
on one core and CPU time is counted, so that other work on the machine disturbs little; a ratio is that of the least
times. DI and MMD beside their definitions, in the same precision. Peak memory of a pass over ten times the images.
"""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import prunus as sc
from benchmarks.ratios import Row, row, say, turn_about
from prunus.score.evidence import Maps
from prunus.score.metrics import METRICS
from prunus.score.score import score
from prunus.zoo.models import create, example

MOMENT = [name for name, metric in METRICS.items() if metric.needs == "moments"]
PASSES = (("resnet56", 128, 8, 6), ("vgg16_imagenet", 8, 3, 5), ("resnet50", 8, 8, 5))  # batch, batches, rounds
CLASSES = 10


def main() -> list[Row]:
    """The rows: each a name, a measured ratio, the bound it must keep, and whether it does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.getLogger("prunus").setLevel(logging.ERROR)  # most of the 1,000 classes have no image here
    torch.manual_seed(0)
    try:
        rows = [_pass(*setting) for setting in PASSES]
        return [*rows, _di(), _mmd(), _memory()]
    finally:
        torch.set_num_threads(threads)


def _pass(name: str, batch: int, batches: int, rounds: int) -> Row:
    model = create(name).eval()
    graph = sc.trace(model, example(name))
    shape = example(name).shape[1:]
    loader = [(torch.randn(batch, *shape), torch.arange(batch) % min(CLASSES, batch // 2)) for _ in range(batches)]
    ours, plain = turn_about(lambda: score(graph, loader, MOMENT), lambda: _forward(model, loader), rounds)
    title = f"scoring all units by {len(MOMENT)} metrics / plain forward, {name} batch {batch}"
    return row(title, ours / plain, 1.10, "lower")


@torch.no_grad()
def _forward(model: nn.Module, loader: list[tuple[Tensor, Tensor]]) -> None:
    for images, _ in loader:
        model(images)


def _di() -> Row:
    images, pixels = 1000, 1024
    maps = torch.randn(images, 2, pixels, dtype=torch.float64).relu()
    labels = torch.arange(images) % CLASSES
    ours, explicit = turn_about(
        lambda: METRICS["di"].score(Maps("u", labels, maps, None, 1 << 30)),
        lambda: [_explicit_di(maps[:, c], labels) for c in range(maps.shape[1])],
        4,
    )
    return row("explicit inverse / DI, N = 1,000, d = 1,024", explicit / ours, 3, "higher")


def _explicit_di(maps: Tensor, labels: Tensor, rho: float = 1e-4) -> float:
    """tr([S + rho I]^-1 S_B) as it is written, scatter matrices by matrix products."""
    centred = maps - maps.mean(0)
    scatter = centred.T @ centred
    means = torch.stack([centred[labels == c].mean(0) for c in range(CLASSES)])
    counts = torch.bincount(labels).to(maps)
    between = (means * counts[:, None]).T @ means
    return float(torch.trace(torch.linalg.inv(scatter + rho * torch.eye(len(scatter), dtype=maps.dtype)) @ between))


def _mmd() -> Row:
    images, pixels = 120, 64
    maps = torch.randn(images, 1, pixels, dtype=torch.float64).relu()
    labels = torch.arange(images) % CLASSES
    ours, loops = turn_about(
        lambda: METRICS["mmd"].score(Maps("u", labels, maps, None, 1 << 30)),
        lambda: _looped_mmd([m.tolist() for m in maps[:, 0]], labels.tolist()),
        2,
    )
    return row("loops over pairs / MMD, N = 120, d = 64", loops / ours, 100, "higher")


def _looped_mmd(maps: list[list[float]], labels: list[int]) -> float:
    """The definition, pair by pair; each kernel value is computed once and added to the sums of its classes."""
    sums = [[0.0] * CLASSES for _ in range(CLASSES)]
    for x, i in zip(maps, labels, strict=True):
        for y, j in zip(maps, labels, strict=True):
            sums[i][j] += math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / 2)
    counts = [labels.count(c) for c in range(CLASSES)]
    total = 0.0
    for c, n in enumerate(counts):
        rest = [k for k in range(CLASSES) if k != c]
        m = sum(counts[k] for k in rest)
        within = sum(sums[a][b] for a in rest for b in rest)
        across = sum(sums[c][b] for b in rest)
        total += sums[c][c] / n**2 + within / m**2 - 2 * across / (n * m)
    return total / CLASSES


MEASURE = """
import resource, sys, torch
import prunus as sc
from benchmarks.ratios import Row, row, say, turn_about
from prunus.score.score import score
from prunus.zoo.models import create, example

torch.set_num_threads(1)
torch.manual_seed(0)
images = int(sys.argv[1])
graph = sc.trace(create("resnet20"), example("resnet20"))
loader = ((torch.randn(100, 3, 32, 32), torch.arange(100) % 10) for _ in range(images // 100))
score(graph, loader, "gsd")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _memory() -> Row:
    peaks = [
        int(subprocess.run([sys.executable, "-c", MEASURE, str(n)], capture_output=True, check=True, text=True).stdout)
        for n in (1000, 10_000)
    ]
    return row("peak memory of a G-SD pass, 10,000 / 1,000 images, resnet20", peaks[1] / peaks[0], 1.05, "lower")


if __name__ == "__main__":
    say(main())
