"""Sensitivity beside plain evaluation, as ratios within one run; racing beside exact; Algorithm 1 taken literally.

    python benchmarks/deciding.py --weights DIR --data DIR [--images 500] [--out docs/results/deciding.json]

ResNet-56 and ResNet-20 with the public weights of akamaster/pytorch_resnet_cifar10 (resnet56-cifar10.safetensors and
resnet20-cifar10.safetensors in DIR or $PRUNUS_WEIGHTS) on CIFAR-10 test images; one thread, CPU time.
Plain: the model under `sc.zeroed`, batch by batch, for every ninth of the 54 units, times nine. The seeds draw other
held-out images from a larger pool, on which every unit's answers are computed once; a race over a sample then asks the
very same answers that it would have computed. Results are written as they come.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import nn

import prunus as sc
from benchmarks.ratios import Row, row, say
from prunus.decide import racing
from prunus.decide.candidates import candidates
from prunus.decide.costs import cost_function
from prunus.decide.widths import Cutter, amounts
from prunus.score.scores import Scores
from prunus.tasks import builtin, partial_forward
from prunus.tasks.evaluate import evaluate
from prunus.zoo.data import ImageData, load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights
from tests.decide.toys import algorithm_1

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ALPHA, BATCH, EVERY = 3.0, 125, 9


@dataclass
class Options:
    """What to measure on."""

    weights: Path | None = None
    data: Path | None = None
    metric: str = "reader_energy"
    images: int = 2000  # held-out images of a run
    pool: int = 3000  # images that the seeds draw from
    seeds: int = 10
    literal: int = 500  # images for Algorithm 1 taken literally
    out: Path | None = None
    rows: list[Row] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, ratio: float, bound: float, better: str) -> None:
        """Note a row, and write all that there is so far."""
        self.rows.append(row(name, ratio, bound, better))
        if self.out is not None:
            words = {"metric": self.metric, "images": self.images, "rows": self.rows, **self.notes}
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(f"{json.dumps(words, indent=2)}\n")


def main(options: Options | None = None) -> list[Row]:
    """The rows; none where weights or data are not to be had."""
    options = options or Options()
    folder = options.weights or Path(os.environ.get("PRUNUS_WEIGHTS", "weights"))
    if not (folder / "resnet56-cifar10.safetensors").exists():
        print(f"deciding: left out, no resnet56-cifar10.safetensors in {folder} ($PRUNUS_WEIGHTS says where)")
        return []
    data = load("cifar10", options.data, mean=MEAN, std=STD, holdout="none")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        literal(options, folder, data)
        resnet56(options, folder, data)
    finally:
        torch.set_num_threads(threads)
    return options.rows


def opened(name: str, folder: Path) -> tuple[nn.Module, sc.ChannelGraph]:
    """A trained network and its graph."""
    model = create(name)
    load_weights(model, folder / f"{name}-cifar10.safetensors")
    return model.eval(), sc.trace(model.eval(), torch.zeros(1, 3, 32, 32))


def literal(options: Options, folder: Path, data: ImageData) -> None:
    """Every network of Algorithm 1 built, counted and evaluated: ResNet-20, 18 units."""
    model, graph = opened("resnet20", folder)
    scores = sc.score(graph, data.loader("train", BATCH, limit=500), metric=options.metric)
    pairs = list(data.loader("test", BATCH, limit=options.literal, seed=1))
    names = candidates(graph)
    found = sc.sensitivity(graph, scores, pairs, alpha=ALPHA, exact=True)
    want = algorithm_1(model, graph, scores, names, pairs, torch.zeros(1, 3, 32, 32), k=6, alpha=ALPHA)
    same = [
        found.tried[n].floss == want.floss[n]
        and found.tried[n].channels == want.removed[n]
        and abs((found.tried[n].accuracy or 0) - want.accuracy[n]) < 1e-9
        for n in names
    ]
    chosen = found.ranked()[:6] == want.chosen
    options.add("ResNet-20: share of units as in Algorithm 1 taken literally", float(np.mean(same)), 1.0, "higher")
    options.add("ResNet-20: chosen units are the same", float(chosen), 1.0, "higher")
    limit = ALPHA * max(want.floss.values())
    free = [n for n in names if not want.stopped[n]]
    worst = max(abs(found.tried[n].channels * want.floss[n] - limit) / want.floss[n] for n in free)
    options.add("ResNet-20: |n FLOSS - alpha FLOSS_max| in granules", worst, 0.5, "lower")


def resnet56(options: Options, folder: Path, data: ImageData) -> None:
    """Times and choices on ResNet-56."""
    graph = opened("resnet56", folder)[1]
    with clock() as scoring:
        scores = sc.score(graph, data.loader("train", BATCH, limit=500), metric=options.metric)
    pool = list(data.loader("test", BATCH, limit=max(options.pool, options.images)))
    pairs = pool[: -(-options.images // BATCH)]
    plain = plain_seconds(graph, scores, pairs)
    spent = Spent()
    with spent.watching(), clock() as race_seconds:
        raced = sc.sensitivity(graph, scores, pairs, alpha=ALPHA)
    options.notes["seconds"] = {"54 plain evaluations": plain, "racing": race_seconds[0], "scoring": scoring[0]}
    options.add("racing / 54 plain evaluations", race_seconds[0] / plain, 0.2, "lower")
    with clock() as rest:
        plan = sc.decide(graph, scores, raced)
        sc.prune(graph, plan)
    round_seconds = scoring[0] + race_seconds[0] + rest[0]
    share = (spent.seconds + rest[0]) / round_seconds
    options.add("planning, zeroing and surgery / a round without retraining", share, 0.02, "lower")
    with clock() as exact_seconds:
        exact = sc.sensitivity(graph, scores, pairs, alpha=ALPHA, exact=True)
    options.notes["seconds"]["exact"] = exact_seconds[0]
    options.add("exact sensitivity / 54 plain evaluations", exact_seconds[0] / plain, 0.6, "lower")
    gap = lead(exact, exact.ranked()) - lead(exact, raced.ranked())
    options.add("points that racing's 18 units lack of the exact ones', this run", 100 * gap, 0.1, "lower")
    seeds(options, graph, scores, pool)


def lead(exact: sc.Sensitivity, names: list[str]) -> float:
    """The mean exact accuracy of the first third."""
    return float(np.mean([exact.tried[n].accuracy or 0.0 for n in names[: round(len(names) / 3)]]))


def plain_seconds(graph: sc.ChannelGraph, scores: Scores, pairs: list[Any]) -> float:
    """CPU seconds of a plain evaluation of every unit, from every ninth one."""
    cutter = Cutter(graph, scores)
    found = amounts(cutter, candidates(graph), alpha=ALPHA, cost=cost_function(graph, "macs"))
    chosen = list(found)[EVERY // 2 :: EVERY]
    evaluate(graph.model, pairs[:1])  # warms up
    with clock() as seconds:
        for name in chosen:
            kept = cutter.keep(name, found[name].channels)
            with sc.zeroed(graph, {name: kept}):
                evaluate(graph.model, pairs)
    return seconds[0] / len(chosen) * len(found)


def seeds(options: Options, graph: sc.ChannelGraph, scores: Scores, pool: list[Any]) -> None:
    """Races over samples of the pool, each against the exact accuracies of its own sample."""
    base, margin, right = answers(graph, scores, pool)
    images, gaps, asked = min(options.images, len(base)), [], []
    for seed in range(options.seeds):
        sample = np.sort(np.random.default_rng(seed).choice(len(base), images, replace=False))
        table = right[:, sample]
        values, seen = racing.race(
            base[sample],
            np.argsort(margin[sample], kind="stable"),
            lambda units, places, table=table: table[np.ix_(units, places)],  # type: ignore[misc]
            len(table),
            round(len(table) / 3),
            confidence=0.95,
            tolerance=0.0005,
            seed=seed,
        )
        exact, k = table.mean(axis=1), round(len(table) / 3)
        picked = np.argsort(-values, kind="stable")[:k]
        gaps.append(100 * (np.sort(exact)[::-1][:k].mean() - exact[picked].mean()))
        asked.append(int(seen.sum()) / table.size)
    options.notes["seeds"] = {"points that the 18 units lack": gaps, "share of answers asked for": asked}
    within = float(np.mean([gap <= 0.1 for gap in gaps]))
    options.add(f"share of {options.seeds} seeds within 0.1 points of the exact best 18", within, 0.9, "higher")


@torch.no_grad()
def answers(graph: sc.ChannelGraph, scores: Scores, pool: list[Any]) -> tuple[Any, Any, Any]:
    """Where the whole network is right, its margins, and where each unit's network is right [units, images]."""
    cutter = Cutter(graph, scores)
    found = amounts(cutter, candidates(graph), alpha=ALPHA, cost=cost_function(graph, "macs"))
    kept = {n: cutter.keep(n, a.channels) for n, a in found.items()}
    runner, base, margin, right = partial_forward.PartialForward(graph), [], [], []
    for number, (images, labels) in enumerate(pool):
        if number == 0:
            runner.agrees(images)
        logits = runner.whole(images)
        base.append(builtin.right(logits, labels).double().numpy())
        margin.append(builtin.margins(logits, labels).abs().double().numpy())
        units = [builtin.right(runner.without(n, k), labels).double() for n, k in kept.items()]
        right.append(torch.stack(units).numpy())
    return np.concatenate(base), np.concatenate(margin), np.concatenate(right, axis=1)


@contextmanager
def clock() -> Iterator[list[float]]:
    """CPU seconds of the block, in a list of one."""
    seconds: list[float] = []
    start = time.process_time()
    try:
        yield seconds
    finally:
        seconds.append(time.process_time() - start)


class Spent:
    """CPU seconds within a sensitivity that are not forward passes: amounts, zeroing, and the race's decisions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Clocks around the functions concerned, taken off afterwards."""
        real: dict[tuple[Any, str], Any] = {
            (importlib.import_module("prunus.decide.sensitivity"), "amounts"): amounts,
            (racing._Race, "add"): racing._Race.add,
            (racing._Race, "settled"): racing._Race.settled,
            (partial_forward, "zeroed"): sc.zeroed,
        }
        try:
            for (owner, name), function in real.items():
                setattr(owner, name, self._zeroing(function) if name == "zeroed" else self._timed(function))
            yield
        finally:
            for (owner, name), function in real.items():
                setattr(owner, name, function)

    def _timed(self, function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - start

        return run

    def _zeroing(self, zeroed: Any) -> Any:
        @contextmanager
        def run(*args: Any) -> Iterator[None]:
            start = time.process_time()
            with zeroed(*args):
                self.seconds += time.process_time() - start
                yield
                start = time.process_time()
            self.seconds += time.process_time() - start

        return run


def arguments() -> Options:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("weights", "data", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--metric", default="reader_energy")
    for name, default in (("images", 2000), ("pool", 3000), ("seeds", 10), ("literal", 500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return Options(**vars(parser.parse_args()))


if __name__ == "__main__":
    say(main(arguments()))
