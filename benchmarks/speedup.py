"""Accuracy over measured speed-up without any training: ResNet-56, ours by time and by MACs, and torch-pruning.

    python benchmarks/speedup.py --weights resnet56-cifar10.safetensors --data DIR --out docs/results/speedup.json

One thread, processor time, original and pruned network in turns. Channels are chosen and repaired on training images;
the accuracy is on half of the test images, which decided nothing. A second run goes on where it stopped.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import secateur as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from benchmarks.peer import EXAMPLE, IMPORTANCES, cut, gradients
from secateur.errors import SecateurError
from secateur.measuring.accuracy import evaluate
from secateur.measuring.latency import latency
from secateur.measuring.speedup import speedup

BATCH = 64
REPAIR_IMAGES = 500
TURNS = 15


def timed(model: nn.Module, small: nn.Module, engine: str, batch: int) -> dict[str, float]:
    """The speed-up of a network, with its interval."""
    before, after = latency(
        {"before": model, "after": small},
        EXAMPLE,
        engine=engine,
        batch_sizes=(batch,),
        rounds=TURNS,
        threads=1,
        cpu_time=True,
    )
    return {key: round(value, 4) for key, value in speedup(before.seconds, after.seconds).__dict__.items()}


class Bench:
    """The network, its images, and the rows found so far."""

    def __init__(self, args: Any) -> None:
        self.model, self.data = opened("resnet56", args)
        self.model.eval()
        self.out: Path = args.out
        versions = {name: version(name) for name in ("torch", "onnxruntime", "torch-pruning", "secateur")}
        self.found = table_so_far(args.out, {"versions": versions, "base": None, "rows": {}})
        self.test = self.data.loader("test", 250)
        if self.found["base"] is None:
            self.found["base"] = evaluate(self.model, self.test).top1
            write(self.found, self.out)

    def row(self, title: str, make: Any, engine: str, batch: int = BATCH) -> None:
        """Make a network, time it and evaluate it, unless that was done before."""
        if title in self.found["rows"]:
            return
        try:
            small, more = make()
        except SecateurError as error:
            self.found["rows"][title] = {"error": str(error)}
        else:
            row = {"speedup": timed(self.model, small, engine, batch), "engine": engine, "batch": batch, **more}
            row["macs"] = round(sc.trace(small, EXAMPLE).macs / sc.trace(self.model, EXAMPLE).macs, 4)
            row["top1"] = evaluate(small, self.test).top1
            self.found["rows"][title] = row
        print(title, json.dumps(self.found["rows"][title]), flush=True)
        write(self.found, self.out)

    def ours(self, engine: str = "onnxruntime", batch: int = BATCH, **goal: float) -> tuple[nn.Module, dict[str, Any]]:
        """Our network: the goal, no training, the closed-form repair."""
        done = sc.compress(
            self.model,
            self.data.loader("train", 250),
            self.data.loader("holdout", 250, limit=500),
            example=EXAMPLE,
            repair="solve",
            epochs=0,
            num_repair_images=REPAIR_IMAGES,
            engine=engine,
            batch=batch,
            threads=1,
            **goal,
        )
        kept = {name: unit["kept"] for name, unit in done.summary["units"].items() if unit["kept"] < unit["width"]}
        return done.model, {"time": done.summary.get("time"), "kept": kept}

    def theirs(self, importance: str, everywhere: bool, ratio: float, round_to: int, repair: bool) -> Any:
        """torch-pruning's network, repaired by us or not."""
        small = cut(self.model, IMPORTANCES[importance](), everywhere, ratio, round_to)
        if not repair:
            return small, {}
        graph = sc.trace(self.model, EXAMPLE)
        keep = kept_by(self.model, small)
        images = self.data.loader("train", 250, shuffle=True, seed=0, limit=REPAIR_IMAGES)
        return sc.repair(graph, sc.Plan.of(graph, keep), images), {}


def kept_by(model: nn.Module, small: nn.Module) -> dict[str, list[int]]:
    """Unit -> channels of the blocks that a smaller network kept, found by comparing filters."""
    found = {}
    narrow = dict(small.named_modules())
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d) and name.endswith(".conv1"):
            ours, theirs = layer.weight.detach().flatten(1), narrow[name].weight.detach().flatten(1)  # type: ignore[operator, union-attr]
            found[f"{name}:out"] = torch.cdist(theirs, ours).argmin(1).sort().values.tolist()
    return found


def main() -> None:
    """All rows, the most important first."""
    bench = Bench(arguments(__doc__).parse_args())
    for asked in (1.5, 1.35, 1.25, 2.0):
        bench.row(f"ours by time, onnxruntime, {asked}x", lambda a=asked: bench.ours(speedup=a), "onnxruntime")
    for target in (0.33, 0.5, 0.65):
        bench.row(f"ours by MACs, {target:.0%}", lambda t=target: bench.ours(target=t), "onnxruntime")
    gradients(bench.model, bench.data, batches=4)
    for name, everywhere, ratio, step in (
        ("magnitude, L2", False, 0.75, 8),
        ("magnitude, L2", False, 0.75, 4),
        ("magnitude, L2", False, 0.5, 16),
        ("batch-norm scale", False, 0.75, 4),
        ("Taylor", False, 0.75, 4),
        ("batch-norm scale", True, 0.5, 4),
        ("batch-norm scale", False, 0.5, 16),
        ("geometric median", False, 0.5, 16),
        ("magnitude, L2", True, 0.5, 16),
    ):
        for repair in (False, True):
            where = "one ranking" if everywhere else "each layer alike"
            title = f"torch-pruning, {name}, {where}, {ratio}, round to {step}{', our repair' if repair else ''}"
            args = (name, everywhere, ratio, step, repair)
            bench.row(title, lambda a=args: bench.theirs(*a), "onnxruntime")
    for asked in (1.5, 1.25):
        bench.row(f"ours by time, eager, {asked}x", lambda a=asked: bench.ours("eager", speedup=a), "eager")


if __name__ == "__main__":
    main()
