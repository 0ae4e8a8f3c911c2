"""Accuracy over measured speed-up without any training: ResNet-56, ours by time and by MACs, and torch-pruning.

    python benchmarks/speedup.py make --weights resnet56-cifar10.safetensors --data DIR --out speedup.json [--only TEXT]
    python benchmarks/speedup.py time --weights resnet56-cifar10.safetensors --data DIR --out speedup.json

`make` prunes, and measures accuracy on the half of the test images that decided nothing. Channels are chosen and
repaired on training images. torch-pruning's networks are made as it cuts them, and repaired as ours are. `time` times
all networks that were made, in turns with the original one: one thread, processor time; run it on a quiet machine. Both
go on where an earlier run stopped.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from benchmarks.peer import EXAMPLE, IMPORTANCES, cut, gradients
from prunus.errors import PrunusError
from prunus.tasks.evaluate import evaluate
from prunus.timing.latency import latency, speedup

REPAIR_IMAGES = 2000  # what `prune` takes by default for such images
TURNS = 15
PACKAGES = ("torch", "onnxruntime", "openvino", "torch-pruning", "prunus")


@dataclass(frozen=True)
class Row:
    """A network to make, and the engines and batch sizes to time it in."""

    title: str
    goal: dict[str, float] = field(default_factory=dict)  # ours
    theirs: tuple[str, bool, float, int] | None = None  # importance, one ranking, share of channels, rounded to
    repaired: bool = True
    timed: tuple[tuple[str, int], ...] = (("onnxruntime", 64),)  # the first is that of a goal in time


def rows() -> list[Row]:
    """All rows, the most important first."""
    found = [
        Row(f"ours by time, {engine}, batch {batch}, {asked}x", {"speedup": asked}, timed=((engine, batch),))
        for engine, batch, speeds in (
            ("onnxruntime", 64, (1.5, 2.0, 1.25, 1.75)),
            ("onnxruntime", 1, (1.5, 2.0)),
            ("eager", 64, (1.5, 2.0)),
            ("openvino", 64, (1.5, 2.0)),
        )
        for asked in speeds
    ]
    found += [Row(f"ours by MACs, {target:.0%}", {"target": target}) for target in (0.33, 0.5, 0.65)]
    for importance, everywhere, ratio, step in (
        ("magnitude, L2", False, 0.5, 16),
        ("magnitude, L2", False, 0.5, 8),
        ("magnitude, L2", False, 0.75, 16),
        ("magnitude, L2", False, 0.75, 8),
        ("magnitude, L2", True, 0.5, 16),
        ("magnitude, L2", True, 0.5, 8),
        ("batch-norm scale", False, 0.5, 16),
        ("batch-norm scale", False, 0.5, 8),
        ("batch-norm scale", True, 0.5, 16),
        ("batch-norm scale", True, 0.5, 8),
        ("Taylor", False, 0.5, 16),
        ("Taylor", False, 0.5, 8),
        ("Taylor", True, 0.5, 16),
        ("Taylor", True, 0.5, 8),
    ):
        where = "one ranking" if everywhere else "each layer alike"
        title = f"torch-pruning, {importance}, {where}, {ratio:.0%}, rounded to {step}"
        found.append(Row(title, theirs=(importance, everywhere, ratio, step), repaired=False))
        found.append(Row(f"{title}, our repair", theirs=(importance, everywhere, ratio, step)))
    return found


class Bench:
    """The network, its images, and the rows found so far."""

    def __init__(self, args: Any) -> None:
        self.model, self.data = opened("resnet56", args)
        self.model.eval()
        self.out, self.networks = args.out, args.networks
        self.test = self.data.loader("test", 250)
        if self.found["base"] is None:
            write({**self.found, "base": evaluate(self.model, self.test).quality}, self.out)

    @property
    def found(self) -> dict[str, Any]:
        """The table in the file; several processes may add rows to it."""
        versions = {name: version(name) for name in PACKAGES}
        return table_so_far(self.out, {"versions": versions, "base": None, "rows": {}})

    def add(self, title: str, row: dict[str, Any]) -> None:
        """Write a row, or another one in its place."""
        found = self.found
        write({**found, "rows": {**found["rows"], title: row}}, self.out)

    def folder(self, row: Row) -> Path:
        """Where the network of a row is."""
        return Path(self.networks) / row.title.replace(", ", "-").replace(" ", "-").replace("%", "")

    def make(self, row: Row) -> None:
        """Make a network and evaluate it, unless that was done before."""
        if row.title in self.found["rows"]:
            return
        print(row.title, flush=True)
        try:
            small, plan, more = self._theirs(row) if row.theirs else self._ours(row)
        except PrunusError as error:
            self.add(row.title, {"error": str(error)})
        else:
            sc.save(small, plan, self.folder(row))
            graph = sc.trace(self.model, EXAMPLE)
            left = round(graph.cost(plan).macs / graph.macs, 4)
            top1 = evaluate(small, self.test).quality
            self.add(row.title, {"top1": top1, "macs": left, "timed": {}, **more})
            print(f"    {top1:.2%}, {left:.1%} of the MACs", flush=True)

    def _ours(self, row: Row) -> tuple[nn.Module, sc.Plan, dict[str, Any]]:
        """The goal, no training, the closed-form repair."""
        engine, batch = row.timed[0]
        done = sc.compress(
            self.model,
            self.data.loader("train", 250),
            self.data.loader("holdout", 250, limit=500),
            example=EXAMPLE,
            epochs=0,
            num_repair_images=REPAIR_IMAGES,
            **({"engine": engine, "batch": batch, "threads": 1} if "speedup" in row.goal else {}),
            **row.goal,
        )
        kept = {name: unit["kept"] for name, unit in done.summary["units"].items() if unit["kept"] < unit["width"]}
        return done.model, done.plan, {"time": done.summary.get("time"), "kept": kept}

    def _theirs(self, row: Row) -> tuple[nn.Module, sc.Plan, dict[str, Any]]:
        """torch-pruning's channels, repaired by us or as it cuts them."""
        assert row.theirs is not None
        name, everywhere, ratio, round_to = row.theirs
        if name == "Taylor":
            gradients(self.model, self.data, batches=4)
        graph = sc.trace(self.model, EXAMPLE)
        plan = sc.Plan.of(graph, kept_by(self.model, cut(self.model, IMPORTANCES[name](), everywhere, ratio, round_to)))
        self.model.zero_grad(set_to_none=True)
        if not row.repaired:
            return sc.prune(graph, plan), plan, {}
        images = self.data.loader("train", 250, shuffle=True, seed=0, limit=REPAIR_IMAGES)
        return sc.repair(graph, plan, images), plan, {}

    def time(self, every: list[Row], again: bool) -> None:
        """Time the networks of each engine and batch size, all in the same turns."""
        for engine, batch in dict.fromkeys(how for row in every for how in row.timed):
            key = f"{engine}, batch {batch}"
            rows = self.found["rows"]
            mine = [row for row in every if (engine, batch) in row.timed and "top1" in rows.get(row.title, ())]
            if all(key in rows[row.title]["timed"] for row in mine) and not again:
                continue
            plans = {row.title: sc.Plan.load(self.folder(row) / "plan.json") for row in mine}
            alike: dict[tuple[tuple[str, int], ...], list[Row]] = {}  # time depends on widths alone
            for row in mine:
                widths = tuple((unit, len(kept)) for unit, kept in sorted(plans[row.title].keep.items()))
                alike.setdefault(widths, []).append(row)
            small = {some[0].title: sc.load(self.folder(some[0]), self.model).eval() for some in alike.values()}
            models = {"before": self.model, **small}
            before, *after = latency(
                models, EXAMPLE, engine=engine, batch_sizes=(batch,), rounds=TURNS, threads=1, cpu_time=True
            )
            for some, timing in zip(alike.values(), after, strict=True):
                gain = speedup(before.seconds, timing.seconds)
                timed = {key: {k: round(v, 4) for k, v in gain.__dict__.items()}}
                for row in some:
                    found = rows[row.title]
                    self.add(row.title, {**found, "timed": {**found["timed"], **timed}})
                    print(f"{key}: {gain} {found['top1']:.2%} {row.title}", flush=True)


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
    """Make or time the rows whose title has the text."""
    parser = arguments(__doc__)
    parser.add_argument("step", choices=("make", "time"))
    parser.add_argument("--only", action="append", help="regular expression of the titles to make; repeat for several")
    parser.add_argument("--networks", type=Path, default=Path("runs/speedup"), help="folder for the networks")
    parser.add_argument("--again", action="store_true", help="time again what is in the file")
    args = parser.parse_args()
    bench = Bench(args)
    if args.step == "time":
        bench.time(rows(), args.again)
    else:
        for row in rows():
            if args.only is None or any(re.search(text, row.title) for text in args.only):
                bench.make(row)


if __name__ == "__main__":
    main()
