"""Accuracy after retraining, with seeds: ours, the paper's, torch-pruning's, in one loop; one, two and four rounds.

    python benchmarks/retrained.py --weights resnet20-cifar10.safetensors --data DIR --out retrained.json \
        --work runs/retrained --network resnet20 --epochs 10 --seeds 0,1,2

Rows, for each seed:
    paper         G-SD and Algorithm 1 to the target in one round, all held-out images, no repair
    macs          the split of least error to the target, the repair solve
    ranked        Algorithm 1 with the metric gsd_reader to the target in one round, the repair solve
    macs, R       the same in R rounds of epochs / R epochs each
    time          the split of least error to --speedup in --engine, the repair solve
    peer          torch-pruning's best importance by held-out accuracy as cut, to the target
    peer, time    the same, cut until the measured speed-up is --speedup
All are retrained by `fit` with the same schedule, teacher, images and seed. The best epoch by accuracy on the held-out
half of the test images is kept, and the other half is read once for it. Each row records its MACs and its measured
speed-up as well. --rows takes some of them. Rows are written one by one; a killed row goes on after its last epoch.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from benchmarks.peer import EXAMPLE, IMPORTANCES, at_target, cut, gradients, macs_of
from benchmarks.schedule import BATCH
from prunus.timing.latency import speedup
from prunus.train.rate_test import FirstBatches

ROWS = ("macs", "peer", "paper", "time", "peer, time", "ranked", "macs, 2", "macs, 4")
TURNS = 15
TEACHING = ("lr", "views", "temperature", "distill_weight")
ASKED = ("network", "target", "speedup", "engine", "epochs", *TEACHING, "precision", "num_images")


class Bench:
    """The network, its images, and how a row is made."""

    def __init__(self, args: Any) -> None:
        self.args, (self.model, self.data) = args, opened(args.network, args)
        asked = {name: getattr(args, name) for name in ASKED}
        versions = {name: version(name) for name in ("torch", "torch-pruning", "prunus")}
        self.found = table_so_far(args.out, {"asked": asked, "versions": versions, "before": {}, "rows": {}})
        if self.found["asked"] != asked:
            sys.exit(f"{args.out} is of another run: {self.found['asked']}, and this one is {asked}")
        if not self.found["before"]:
            self.found["before"] = {part: self.accuracy(self.model, part) for part in ("holdout", "test")}
            self.write()

    def write(self) -> None:
        """The table so far."""
        write(self.found, self.args.out)

    def accuracy(self, model: nn.Module, part: str) -> float:
        """Per cent right."""
        return round(100 * sc.evaluate(model, self.data.loader(part, 250)).quality, 2)  # type: ignore[arg-type]

    def train(self, seed: int) -> FirstBatches:
        """Training batches; with --num-images, an epoch is that many of them, others each time."""
        whole = self.data.loader("train", BATCH, augment=True, shuffle=True, seed=seed)
        return FirstBatches(whole, (self.args.num_images or 10**9) // BATCH)

    def teaching(self, rounds: int = 1) -> dict[str, Any]:
        """The schedule of a round."""
        shared = {name: getattr(self.args, name) for name in TEACHING}
        epochs = max(1, self.args.epochs // rounds)
        return {"preset": "cosine", "epochs": epochs, "mixed_precision": self.args.precision, **shared}

    def folder(self, title: str, seed: int) -> Path:
        """The folder of a row's work."""
        return Path(self.args.work) / f"{title.replace(', ', '-')}-seed-{seed}"

    def compress(self, seed: int, title: str, **settings: Any) -> nn.Module:
        """`compress` with the images of a seed; kept in a folder, because timings would make another network again."""
        plain, held = self.data.loader("train", 250), self.data.loader("holdout", 250)
        settings["folder"] = self.folder(title, seed) / "pruned"
        found = sc.compress(self.model, self.train(seed), held, score_on=plain, example=EXAMPLE, seed=seed, **settings)
        return found.model

    def ours(self, seed: int, title: str, **settings: Any) -> nn.Module:
        """Split for the least error and repaired, in one round without retraining unless settings say otherwise."""
        fixed = {"split": "least_error", "repair": "solve", "epochs": 0, "rounds": 1}
        return self.compress(seed, title, **{**fixed, **settings})

    def in_rounds(self, seed: int, title: str) -> nn.Module:
        """Ours, retrained in each of some rounds."""
        rounds = int(title.rpartition(", ")[2])
        settings = {"target": self.args.target, "rounds": rounds, "distill": True, **self.teaching(rounds)}
        return self.ours(seed, title, **settings)

    def paper(self, seed: int) -> nn.Module:
        """The paper's metric and Algorithm 1, without a repair."""
        fixed = {"metric": "gsd", "split": "algorithm1", "exact": True, "repair": "none", "epochs": 0, "rounds": 1}
        return self.compress(seed, "paper", target=self.args.target, **fixed)

    def ranked(self, seed: int) -> nn.Module:
        """Units ranked by held-out accuracy, and the repair."""
        fixed = {"metric": "gsd_reader", "split": "algorithm1", "repair": "solve", "epochs": 0, "rounds": 1}
        return self.compress(seed, "ranked", target=self.args.target, **fixed)

    def peer(self) -> nn.Module:
        """torch-pruning's network at the target, by the importance that is best as cut on held-out images."""
        name, everywhere = self.importance()
        return at_target(self.model, IMPORTANCES[name](), everywhere, self.args.target)

    def importance(self) -> tuple[str, bool]:
        """torch-pruning's best importance, and whether it ranks all layers together; looked for once."""
        gradients(self.model, self.data)
        if "importances" not in self.found:
            tried = [(name, everywhere) for name in IMPORTANCES for everywhere in (False, True)]
            self.found["importances"] = [
                [
                    *each,
                    self.accuracy(at_target(self.model, IMPORTANCES[each[0]](), each[1], self.args.target), "holdout"),
                ]
                for each in tried
            ]
            self.write()
        name, everywhere, _ = max(self.found["importances"], key=lambda each: each[2])
        return name, everywhere

    def peer_in_time(self) -> nn.Module:
        """The same importance, by the smallest share of channels, in steps of 2%, that is as fast as asked for."""
        name, everywhere = self.importance()
        for share in range(self.found.get("peer_share", 10), 90, 2):
            small = cut(self.model, IMPORTANCES[name](), everywhere, share / 100)
            known = share == self.found.get("peer_share")  # timed once: another time it may seem slower
            if known or timed(self.model, small, self.args.engine)["ratio"] >= self.args.speedup:
                self.found["peer_share"] = share
                self.write()
                return small
        raise SystemExit(f"torch-pruning's network does not reach {self.args.speedup:g}x")

    def retrained(self, start: nn.Module, title: str, seed: int) -> nn.Module:
        """The best epoch of a network's retraining."""
        self.model.zero_grad(set_to_none=True)
        return sc.fit(
            start,
            self.train(seed),
            self.data.loader("holdout", 250),
            teacher=self.model,
            seed=seed + 1,  # as in the first round of compress
            keep_best=True,
            checkpoint_dir=self.folder(title, seed) / "retrained",
            **self.teaching(),
        ).model

    def row(self, title: str, seed: int) -> dict[str, Any]:
        """One row: the network as it is before its retraining, and after."""
        starts: dict[str, Callable[[], nn.Module]] = {
            "paper": lambda: self.paper(seed),
            "ranked": lambda: self.ranked(seed),
            "macs": lambda: self.ours(seed, "macs", target=self.args.target),
            "time": lambda: self.ours(seed, "time", speedup=self.args.speedup, engine=self.args.engine, threads=1),
            "peer": self.peer,
            "peer, time": self.peer_in_time,
        }
        if title in starts:
            start = starts[title]()
            found, first = self.retrained(start, title, seed), {"start": self.accuracy(start, "holdout")}
        else:
            found, first = self.in_rounds(seed, title), {}
        return {
            **first,
            "holdout": self.accuracy(found, "holdout"),
            "test": self.accuracy(found, "test"),
            "macs_removed": round(1 - macs_of(found) / macs_of(self.model), 4),
            "speedup": timed(self.model, found, self.args.engine),
        }


def timed(model: nn.Module, small: nn.Module, engine: str) -> dict[str, float]:
    """The speed-up at batch 64 on one thread, with its interval; processor time, in turns."""
    both = {"before": model, "after": small}
    before, after = sc.latency(both, EXAMPLE, engine=engine, batch_sizes=(64,), rounds=TURNS, threads=1, cpu_time=True)
    return {key: round(value, 4) for key, value in vars(speedup(before.seconds, after.seconds)).items()}


def means(rows: dict[str, Any]) -> dict[str, Any]:
    """Row without its seed -> mean and standard deviation of the test accuracy, and the number of seeds."""
    groups: dict[str, list[float]] = {}
    for title, row in rows.items():
        groups.setdefault(title.rpartition(", seed ")[0], []).append(row["test"])
    return {
        title: [round(statistics.mean(each), 3), round(statistics.stdev(each), 3) if len(each) > 1 else None, len(each)]
        for title, each in groups.items()
    }


def main() -> None:
    """Fill in the rows that are missing, one seed after the other."""
    parser = arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--speedup", type=float, default=1.3)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--views", type=int, help="see `prunus train --help`, as for the next two")
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--distill-weight", type=float, default=0.9)
    parser.add_argument("--precision", default="no", help="of the training: bf16 is faster on some processors")
    parser.add_argument("--num-images", type=int, help="images in an epoch; all by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rows", default=";".join(ROWS), help="separated by semicolons")
    args = parser.parse_args()
    bench = Bench(args)
    for seed in map(int, args.seeds.split(",")):
        for title in args.rows.split(";"):
            name = f"{title}, seed {seed}"
            if name not in bench.found["rows"]:
                bench.found["rows"][name] = bench.row(title, seed)
                bench.found["means"] = means(bench.found["rows"])
                bench.write()
                print(name, bench.found["rows"][name], flush=True)
    print(bench.found.get("means"))


if __name__ == "__main__":
    main()
