"""Half of the MACs removed from small networks of five tasks: quality before, as cut, repaired and retrained.

    python benchmarks/tasks.py --out docs/results/tasks.json

Every network is trained here first, on scikit-learn's digits or on made-up signals. Held-out images decide; the figures
are those of test images that nothing else reads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc

TARGET, BATCH, EPOCHS, RETRAIN = 0.5, 32, 12, 6
LEAST_ERROR = {"split": "least_error", "metric": "rebuilt"}
Parts = tuple[list[Any], list[Any], list[Any]]  # train, holdout, test
Example = Callable[[], tuple[nn.Module, Parts, Any]]


def digits() -> tuple[Tensor, Tensor]:
    """The 1,797 digits, 8 x 8, and their classes, in a fixed random order."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy(found.images[order] / 16).float()
    return images, torch.from_numpy(found.target[order])


def divided(x: Tensor, y: Tensor) -> Parts:
    """60% to train on, 20% held out, 20% to test."""
    borders = [0, int(0.6 * len(x)), int(0.8 * len(x)), len(x)]
    pairs = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(borders)]
    train, holdout, test = (list(zip(a.split(BATCH), b.split(BATCH), strict=True)) for a, b in pairs)
    return train[:-1], holdout, test  # the last training batch may be too small for a batch norm


def conv(dimensions: int, inputs: int, outputs: int) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    kind, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d), (nn.Conv3d, nn.BatchNorm3d))[dimensions - 1]
    return nn.Sequential(kind(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU())


class UNet(nn.Module):
    """Two levels; the decoder reads the encoder's maps again."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(2, 1, 12), conv(2, 12, 24), conv(2, 24, 32)
        self.d, self.e, self.head = conv(2, 32 + 24, 24), conv(2, 24 + 12, 12), nn.Conv2d(12, classes, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Logits of each pixel."""
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        d = self.d(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        return {"out": self.head(self.e(torch.cat([F.interpolate(d, scale_factor=2.0), a], 1)))}


def segmentation() -> tuple[nn.Module, Parts, Any]:
    """Digits with a square and a bar drawn beside them: background, ink of the digit, square, bar."""
    images, _ = digits()
    draw = torch.Generator().manual_seed(1)
    x = 0.15 * torch.randn(len(images), 1, 16, 16, generator=draw)
    y = torch.zeros(len(images), 16, 16, dtype=torch.long)
    for n, image in enumerate(images):
        i, j = torch.randint(0, 9, (2,), generator=draw).tolist()
        k, m = torch.randint(0, 12, (2,), generator=draw).tolist()
        r, s = torch.randint(0, 14, (1,), generator=draw).item(), torch.randint(0, 9, (1,), generator=draw).item()
        x[n, 0, i : i + 8, j : j + 8] += image
        y[n, i : i + 8, j : j + 8][image > 0.3] = 1
        x[n, 0, k : k + 4, m : m + 4] -= 0.8
        y[n, k : k + 4, m : m + 4] = 2
        x[n, 0, r : r + 2, s : s + 7] = 1.0
        y[n, r : r + 2, s : s + 7] = 3
    return UNet(4), divided(x, y), "segmentation"


def multilabel() -> tuple[nn.Module, Parts, Any]:
    """Two digits side by side: which of the ten are there?"""
    images, classes = digits()
    draw = torch.Generator().manual_seed(2)
    other = torch.randperm(len(images), generator=draw)
    x = torch.cat([images, images[other]], 2)[:, None]
    y = torch.maximum(F.one_hot(classes, 10), F.one_hot(classes[other], 10))
    net = nn.Sequential(conv(2, 1, 16), conv(2, 16, 32), nn.MaxPool2d(2), conv(2, 32, 32), nn.AdaptiveMaxPool2d(1))
    return nn.Sequential(*net, nn.Flatten(), nn.Linear(32, 10)), divided(x, y), "multilabel"


def series() -> tuple[nn.Module, Parts, Any]:
    """A noisy wave of 128 samples: what is its frequency?"""
    draw = torch.Generator().manual_seed(3)
    y = 2 + 10 * torch.rand(1800, generator=draw)
    phase = 6.28 * torch.rand(1800, 1, generator=draw)
    t = torch.linspace(0, 1, 128)
    x = torch.sin(6.28 * y[:, None] * t + phase) + 0.5 * torch.randn(1800, 128, generator=draw)
    net = nn.Sequential(conv(1, 1, 16), conv(1, 16, 32), nn.MaxPool1d(4), conv(1, 32, 32), nn.AdaptiveAvgPool1d(1))
    return nn.Sequential(*net, nn.Flatten(), nn.Linear(32, 1)), divided(x[:, None], (y - 7) / 3), "regression"


def volumes() -> tuple[nn.Module, Parts, Any]:
    """A digit that moves through 6 slices: which digit?"""
    images, classes = digits()
    draw = torch.Generator().manual_seed(4)
    x = 0.2 * torch.randn(len(images), 1, 6, 10, 10, generator=draw)
    for n, image in enumerate(images):
        start = torch.randint(0, 3, (1,), generator=draw).item()
        for step in range(3):
            x[n, 0, int(start) + step, step : step + 8, 1:9] += image
    net = nn.Sequential(conv(3, 1, 8), conv(3, 8, 16), nn.MaxPool3d(2), conv(3, 16, 24), nn.AdaptiveMaxPool3d(1))
    return nn.Sequential(*net, nn.Flatten(), nn.Linear(24, 10)), divided(x, classes), "classification"


def normed(inputs: int, outputs: int, side: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and batch norm."""
    layer = nn.Conv2d(inputs, outputs, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class InvertedResidual(nn.Module):
    """MobileNetV2's block: expand, depthwise convolution, project; added to its input where the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, expansion: int = 4) -> None:
        super().__init__()
        inner = expansion * inputs
        self.expand, self.depthwise = normed(inputs, inner, 1), normed(inner, inner, 3, stride, inner)
        self.project, self.adds = normed(inner, outputs, 1), stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.project(F.relu6(self.depthwise(F.relu6(self.expand(x)))))
        return x + y if self.adds else y


class Detector(nn.Module):
    """Anchor-free: at each cell of a 6 x 6 grid, is the centre of a digit there, and which digit?

    The backbone is a small MobileNetV2: inverted residuals with depthwise convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        blocks = [
            InvertedResidual(a, b, stride) for a, b, stride in ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 1))
        ]
        self.stem, self.body, self.last = normed(1, 16, 3, 2), nn.Sequential(*blocks), normed(32, 64, 1)
        self.there, self.kind = nn.Conv2d(64, 1, 1), nn.Conv2d(64, 10, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Logits of each cell: whether a digit is there, and of which class."""
        features = F.relu6(self.last(self.body(F.relu6(self.stem(x)))))
        return {"there": self.there(features)[:, 0], "kind": self.kind(features)}


def detection_loss(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Binary cross-entropy of all cells, and cross-entropy of those with a digit."""
    weight = torch.tensor(6.0)
    there = F.binary_cross_entropy_with_logits(outputs["there"], (labels >= 0).float(), pos_weight=weight)
    return there + F.cross_entropy(outputs["kind"], labels, ignore_index=-1)


def detections(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Digits found in the right cell with the right class, cells where one was seen, digits that are there."""
    seen, kind = outputs["there"] > 0, outputs["kind"].argmax(1)
    return torch.stack([(seen & (kind == labels)).sum(), seen.sum(), (labels >= 0).sum()])


def detector() -> tuple[nn.Module, Parts, Any]:
    """Two digits in a scene of 24 x 24: where, and which?"""
    images, classes = digits()
    draw = torch.Generator().manual_seed(5)
    x = 0.15 * torch.randn(len(images), 1, 24, 24, generator=draw)
    y = torch.full((len(images), 6, 6), -1)
    for n in range(len(images)):
        for half in range(2):
            k = n if half == 0 else int(torch.randint(0, len(images), (1,), generator=draw))
            i = int(torch.randint(0, 17, (1,), generator=draw))
            j = 12 * half + int(torch.randint(0, 5, (1,), generator=draw))
            x[n, 0, i : i + 8, j : j + 8] += images[k]
            y[n, (i + 4) // 4, (j + 4) // 4] = classes[k]
    found = sc.Quality(detections, "F1 of detections", "%", lambda s: float(2 * s[0] / (s[1] + s[2])))
    return Detector(), divided(x, y), sc.Task(name="detection", loss=detection_loss, quality=found)


EXAMPLES: dict[str, Example] = {
    "U-Net, shapes and digits": segmentation,
    "two digits, ten labels": multilabel,
    "1-D, frequency of a wave": series,
    "3-D, a moving digit": volumes,
    "detector, digits in a scene": detector,
}


def measure(make: Example) -> dict[str, Any]:
    """One example: train, cut, repair, retrain."""
    torch.manual_seed(0)
    model, (train, holdout, test), task = make()
    start = time.perf_counter()
    model = sc.fit(model, train, task=task, epochs=EPOCHS, lr=0.1, progress=False).model.eval()
    seconds = time.perf_counter() - start
    row: dict[str, Any] = {}
    ways = {
        "cut": {"repair": "none", "epochs": 0, "metric": "reader_energy"},
        "repaired": {"repair": "solve", "epochs": 0},
        "retrained": {"repair": "solve", "epochs": RETRAIN, "rounds": 1},
        # The same channels as those of "repaired", which the split of least error chooses.
        "retrained_same_cut": {"repair": "solve", "epochs": RETRAIN, "rounds": 1, **LEAST_ERROR},
    }
    for name, way in ways.items():
        start = time.perf_counter()
        found = sc.compress(model, train, holdout, test=test, target=TARGET, task=task, progress=False, **way)
        words = found.summary
        row["before"], row[name] = words["before"]["test"]["top1"], words["after"]["test"]["top1"]
        row[f"{name}_holdout"] = words["after"]["holdout"]["top1"]
        row[f"{name}_start_holdout"] = found.rounds[-1].pruned.quality  # after the cut and the repair
        row[f"{name}_macs_removed"] = words["removed"]["macs"]
        row[f"{name}_seconds"] = round(time.perf_counter() - start, 1)
        row |= {"quality": words["quality"]["name"], "unit": words["quality"]["unit"], "macs": words["before"]["macs"]}
    return row | {"test_images": words["after"]["test"]["num_images"], "training_seconds": round(seconds, 1)}


def main() -> None:
    """Measure all examples, and write after each one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/tasks.json"))
    parser.add_argument("--only", help="examples whose names contain this; the other rows of the file stay")
    given = parser.parse_args()
    out: Path = given.out
    rows: dict[str, Any] = json.loads(out.read_text())["rows"] if given.only and out.exists() else {}
    for name, make in EXAMPLES.items():
        if given.only and given.only not in name:
            continue
        rows[name] = measure(make)
        print(name, json.dumps(rows[name]))
        out.write_text(
            json.dumps({"target": TARGET, "epochs": EPOCHS, "retraining": RETRAIN, "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
