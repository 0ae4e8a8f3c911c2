"""torch-pruning on the same task: ResNet-56 on CIFAR-10 at the same MACs, retrained by the same loop and schedule.

    python benchmarks/peer.py --weights resnet56-cifar10.safetensors --data DIR --out docs/results/peer50.json

Its importances are tried on each block's inner channels (its graph does not follow the zero-padded shortcuts), the same
share of each layer and one ranking over all layers. The best by held-out accuracy, as cut, is retrained. Held-out
images are half of the test images; the other half is read once, at the end. A second run goes on where it stopped.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch_pruning as tp
from torch import nn
from torch.nn import functional as F

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.tasks.evaluate import evaluate
from prunus.train.fit import fit
from prunus.train.settings import preset_of
from prunus.zoo.data import ImageData

EXAMPLE = torch.zeros(1, 3, 32, 32)
IMPORTANCES: dict[str, Callable[[], Any]] = {
    "magnitude, L2": lambda: tp.importance.GroupMagnitudeImportance(p=2),
    "magnitude, L1": lambda: tp.importance.GroupMagnitudeImportance(p=1),
    "geometric median": lambda: tp.importance.FPGMImportance(p=2),
    "batch-norm scale": tp.importance.BNScaleImportance,
    "LAMP": lambda: tp.importance.LAMPImportance(p=2),
    "Taylor": tp.importance.GroupTaylorImportance,
}


def macs_of(model: nn.Module) -> int:
    """MACs of one image, by prunus's count."""
    return sc.trace(model, EXAMPLE).macs


def cut(model: nn.Module, importance: Any, everywhere: bool, ratio: float, round_to: int | None = None) -> nn.Module:
    """A copy of the network without that share of the blocks' inner channels, rounded to multiples of `round_to`."""
    small = copy.deepcopy(model)
    for mine, theirs in zip(small.parameters(), model.parameters(), strict=True):
        mine.grad = None if theirs.grad is None else theirs.grad.clone()
    inner = {name for name, module in small.named_modules() if isinstance(module, nn.Conv2d) and name.endswith("conv1")}
    inner.discard("conv1")  # the stem
    others = [
        module
        for name, module in small.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and name not in inner
    ]
    pruner = tp.pruner.BasePruner(
        small,
        EXAMPLE,
        importance,
        global_pruning=everywhere,
        pruning_ratio=ratio,
        max_pruning_ratio=0.9,
        ignored_layers=others,
        round_to=round_to,
    )
    pruner.step()
    small.zero_grad(set_to_none=True)
    return small


def at_target(model: nn.Module, importance: Any, everywhere: bool, target: float) -> nn.Module:
    """Cut by the smallest ratio, in steps of half a per cent, that removes the target."""
    whole, low, high = macs_of(model), 0, 180
    while low < high:
        middle = (low + high) // 2
        removed = 1 - macs_of(cut(model, importance, everywhere, middle / 200)) / whole
        low, high = (low, middle) if removed >= target - 0.002 else (middle + 1, high)
    return cut(model, importance, everywhere, low / 200)


def gradients(model: nn.Module, data: ImageData, batches: int = 40) -> None:
    """The loss's gradient over some training images, for Taylor; batch norm as in use."""
    loader = data.loader("train", 128, shuffle=True, seed=0)
    for _, (images, labels) in zip(range(batches), loader, strict=False):
        F.cross_entropy(model(images), labels).backward()


def main() -> None:
    """Try the importances, then retrain the best."""
    parser = arguments(__doc__)
    parser.add_argument("--target", type=float, default=0.496)
    parser.add_argument("--preset", default="cosine")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--distill", action="store_true")
    parser.add_argument("--temperature", type=float, default=2.0, help="of the distillation")
    parser.add_argument("--checkpoints", type=Path, help="folder for checkpoints, to go on after a stop")
    args = parser.parse_args()
    model, data = opened("resnet56", args)
    holdout, test = data.loader("holdout", 256), data.loader("test", 256)
    asked = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    for name in ("weights", "data", "out", "checkpoints"):
        asked.pop(name)
    versions = {name: version(name) for name in ("torch", "torch-pruning", "prunus")}
    found = table_so_far(args.out, {"asked": asked, "versions": versions, "base": {}, "cut": {}})
    if found["asked"] != asked:
        sys.exit(f"{args.out} is of another run: {found['asked']}, and this one is {asked}; give another --out")
    if not found["base"]:
        found["base"] = {"holdout": evaluate(model, holdout).quality, "macs": macs_of(model)}
        write(found, args.out)
    gradients(model, data)
    for name, make in IMPORTANCES.items():
        for everywhere in (False, True):
            title = f"{name}, {'one ranking' if everywhere else 'each layer alike'}"
            if title not in found["cut"]:
                small = at_target(model, make(), everywhere, args.target)
                removed = 1 - macs_of(small) / found["base"]["macs"]
                found["cut"][title] = {"holdout": evaluate(small, holdout).quality, "removed": round(removed, 4)}
                print(title, found["cut"][title], flush=True)
                write(found, args.out)
    best = max(found["cut"], key=lambda title: found["cut"][title]["holdout"])
    name, where = best.rsplit(", ", 1)
    small = at_target(model, IMPORTANCES[name](), where == "one ranking", args.target)
    found["retrained"] = best
    model.zero_grad(set_to_none=True)
    with tempfile.TemporaryDirectory() as spare:
        fitted = fit(
            small,
            data.loader("train", 128, augment=True, shuffle=True, seed=0),
            holdout,
            preset=preset_of(args.preset, epochs=args.epochs, lr=args.lr),
            teacher=model if args.distill else None,
            **({"temperature": args.temperature} if args.distill else {}),
            seed=1,
            checkpoint_dir=args.checkpoints or Path(spare),
            on_epoch=lambda epoch: print(epoch, flush=True),
        )
    found["history"] = [
        {"epoch": e.number, "loss": e.loss, "holdout": e.holdout.quality, "seconds": round(e.seconds, 1)}
        for e in fitted.history
        if e.holdout is not None
    ]
    found["test"] = {"before": evaluate(model, test).quality, "after": evaluate(fitted.model, test).quality}
    found["images"] = {"holdout": data.count("holdout"), "test": data.count("test")}
    write(found, args.out)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
