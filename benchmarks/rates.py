"""The rate that the short test of `prune` chooses, beside retraining at each of the rates that it tries.

    python benchmarks/rates.py --resnet20 resnet20-cifar10.safetensors --data DIR --out docs/results/rates.json

Half of the MACs of each network are removed in one round, without a repair. LeNet-5 and resnet8 are trained here, on
scikit-learn's digits; ResNet-20 is given, and retrained on 5,000 images of CIFAR-10. Held-out images choose the rate;
the figures are of the test images, of the last epoch (`prune` keeps the best epoch by held-out accuracy).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import MEAN, STD, write
from prunus.tasks.evaluate import evaluate
from prunus.train.rate_test import best_rate, try_rates
from prunus.train.settings import preset_of
from prunus.zoo.data import ImageData, load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights

EPOCHS = 3
LIMIT = 5000  # training images of CIFAR-10


def on_digits(name: str) -> tuple[nn.Module, ImageData]:
    """A network of the zoo and digits of its size, trained for ten epochs."""
    torch.manual_seed(0)
    channels = {} if name == "lenet5" else {"in_channels": 1}
    data = load("digits", size=32)
    train = data.loader("train", 64, shuffle=True)
    return sc.fit(create(name, num_classes=10, **channels), train, preset="cosine", epochs=10).model.eval(), data


def row(name: str, model: nn.Module, data: ImageData) -> dict[str, Any]:
    """Per cent right as cut and after retraining at each rate, and the rate that the test chooses."""
    limit = LIMIT if data.count("train") > LIMIT else None
    train = data.loader("train", 128, augment=True, shuffle=True, limit=limit)
    holdout, test = (data.loader(part, 250, limit=2500) for part in ("holdout", "test"))  # type: ignore[arg-type]
    plain = data.loader("train", 250, limit=limit)
    cut = sc.compress(model, train, holdout, score_on=plain, target=0.5, rounds=1, epochs=0, repair="none").model
    schedule = preset_of("cosine", epochs=EPOCHS)
    tries = try_rates(cut, train, holdout, schedule, evaluate=evaluate)
    after = {}
    for one in tries:
        fitted = sc.fit(cut, train, preset=preset_of(schedule, lr=one.lr))
        after[f"{one.lr:g}"] = round(100 * evaluate(fitted.model, test).quality, 2)
        print(f"{name}, rate {one.lr:g}: {after[f'{one.lr:g}']:.2f}%", flush=True)
    return {
        "before": round(100 * evaluate(model, test).quality, 2),
        "cut": round(100 * evaluate(cut, test).quality, 2),
        "after": after,
        "tries": {f"{one.lr:g}": round(100 * one.quality, 2) for one in tries},
        "chosen": f"{best_rate(tries):g}",
    }


def main() -> None:
    """All three networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resnet20", type=Path, required=True, help="its weights")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = {f"{name} on digits": row(name, *on_digits(name)) for name in ("lenet5", "resnet8")}
    resnet20 = create("resnet20", num_classes=10).eval()
    load_weights(resnet20, args.resnet20)
    cifar10 = load("cifar10", args.data, mean=MEAN, std=STD, holdout="test:0.5")
    rows["resnet20 on cifar10"] = row("resnet20", resnet20, cifar10)
    for name, found in rows.items():
        print(name, found)
    write({"epochs": EPOCHS, "images_of_cifar10": LIMIT, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
