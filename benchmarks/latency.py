"""Whatever is measured in seconds, one thread, processor time.

    python benchmarks/latency.py tables [--network NAME] [--engine ENGINE] [--batch N] [--out FILE]
    python benchmarks/latency.py ways [--network NAME] [--weights FILE --data DIR] [--out FILE]
    python benchmarks/latency.py costs [--network NAME] [--step STEP] [--num-images N] [--memory 4G] [--out FILE]

tables  Do latency tables predict the time of pruned networks? A table is measured (or read from the user's cache
        folder), then several plans are timed in turns with the unpruned network. The speed of a machine changes within
        minutes, so both are relative to the unpruned network in the same run: `ratio` is predicted / measured. Plans:
        three eighths of every unit inside a block; three quarters of every unit, with selections from streams; widths
        that were timed, drawn at random; odd widths; and for small networks the split of least error for twice the
        speed by the table, with errors that grow as the square of the share removed.
ways    How much faster is a network without half of its MACs, in which engine, and do widths matter? ResNet-56 and
        CIFAR VGG-16 lose half of their MACs in one round of Algorithm 1 and are timed beside the originals at batch 64.
        Speed does not depend on weights; which units are chosen does, so trained weights and CIFAR-10 may be given.
costs   What forward passes, scoring, sensitivity, training, the repair and the scores `rebuilt` cost for each image, on
        random images and weights. Each step runs in a process of its own, whose peak memory is what it takes.

Networks are fresh unless weights are given: time does not depend on weights. Rows that the file holds are not measured
again; --again measures them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from benchmarks import MEAN, STD, Results, Row
from prunus.deciding.goal import Budget
from prunus.deciding.splits import SplitInputs, least_error
from prunus.errors import DecideError
from prunus.timing.latency import speedup
from prunus.timing.latency_table import LatencyTable, widths_to_time
from prunus.timing.layer_timing import latency_table
from prunus.zoo.data import load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights
from tests.networks import from_torchvision

ENGINES = ("eager", "onnxruntime", "openvino")
NETWORKS = {  # image size, batch sizes
    "resnet56": (32, (64, 1)),
    "vgg16": (32, (64, 1)),
    "mobilenet_v2": (224, (8, 1)),
    "resnet50": (224, (8, 1)),
}


def network(name: str) -> nn.Module:
    """A fresh network: of the registry, of torchvision, or EfficientNet-Lite0 (lite0, needs timm)."""
    torch.manual_seed(0)
    if name in ("mobilenet_v2", "vgg16_bn"):
        return from_torchvision.library().get_model(name, weights=None).eval()  # type: ignore[no-any-return]
    if name == "lite0":
        from_torchvision.library()  # timm needs torchvision
        import timm

        return timm.create_model("tf_efficientnet_lite0").eval()  # type: ignore[no-any-return]
    return create(name).eval()


# Latency tables

PLANS = ("unpruned", "three eighths of inner units", "three quarters of all units", "timed widths", "odd widths")
TWICE = "twice as fast by the table"
SMALL = ("resnet56", "vgg16")
TURNS = 9


def tables(args: argparse.Namespace) -> None:
    """Predicted and measured seconds of each plan, for each network, engine and batch size."""
    results = Results(args.out, "Seconds that latency tables predict and that were measured")
    for name in args.network or NETWORKS:
        size, batches = NETWORKS[name]
        graph = prunus.trace(network(name), torch.zeros(1, 3, size, size), check=False)
        for batch in args.batch or batches:
            for engine in args.engine or ENGINES:
                key = {"network": name, "engine": engine, "batch": batch}
                if results.find(key) is None or args.again:
                    for row in compared(graph, key):
                        results.add(row, results.find({**key, "plan": row["plan"]}))


def compared(graph: prunus.ChannelGraph, key: Row) -> Iterator[Row]:
    """A row for each plan."""
    started = time.perf_counter()
    table = latency_table(graph, key["engine"], key["batch"], 1)
    spent = round(time.perf_counter() - started, 1)
    keeps = {plan: kept(graph, plan) for plan in PLANS}
    if key["network"] in SMALL:
        keeps[TWICE] = twice_as_fast(graph, table)
    models = {plan: prunus.prune(graph, prunus.Plan.of(graph, keep), check=False) for plan, keep in keeps.items()}
    how: dict[str, Any] = {"engine": key["engine"], "batch_sizes": (key["batch"],), "rounds": TURNS, "threads": 1}
    timings = prunus.latency(models, graph.example, cpu_time=True, **how)
    for (plan, keep), timing in zip(keeps.items(), timings, strict=True):
        predicted, gain = table.predict(graph, keep), speedup(timings[0].seconds, timing.seconds)
        yield {
            **key,
            "plan": plan,
            "macs": graph.cost(keep).macs,
            "predicted": predicted,
            "measured": statistics.median(timing.seconds),
            "predicted_speedup": table.whole / predicted,
            "measured_speedup": gain.ratio,
            "interval": (gain.low, gain.high),
            "ratio": gain.ratio * predicted / table.whole,
            "remainder": table.remainder / table.whole,
            "table_seconds": spent,
            "measured_with": str(table.measured_with),
        }
        print(
            f"{key['network']:12} {key['engine']:11} {key['batch']:3} {plan:27} speed-up "
            f"{table.whole / predicted:.2f}x predicted, {gain.ratio:.2f}x measured",
            flush=True,
        )


def kept(graph: prunus.ChannelGraph, plan: str) -> dict[str, tuple[int, ...]]:
    """Unit -> channels that the plan keeps: the first ones, because only their number matters."""
    draw = np.random.default_rng(0)
    keep: dict[str, range] = {}
    for name, unit in graph.units.items():
        steps = unit.width // unit.granule
        inner = unit.kind == "private"
        if plan == "three eighths of inner units" and inner:
            count = 3 * steps // 8
        elif plan == "three quarters of all units":
            count = 3 * steps // 4
        elif plan == "timed widths" and inner:
            count = int(draw.choice([n for n in widths_to_time(steps) if n >= steps / 4]))
        elif plan == "odd widths" and inner:
            count = max(1, 5 * steps // 8 - 1)
        else:
            continue
        keep[name] = range(max(1, count) * unit.granule)
    return graph.balance(keep)


def twice_as_fast(graph: prunus.ChannelGraph, table: LatencyTable) -> dict[str, tuple[int, ...]]:
    """Kept channels of the split of least error for half of the predicted time."""
    errors = {name: np.arange(1, unit.width + 1) ** 2 / unit.width**2 for name, unit in graph.units.items()}
    budget = Budget("latency", table.whole / 2, table.whole, table)
    return dict(least_error(SplitInputs(graph, prunus.Scores("square", errors, 0), budget)).keep)


# Half of the MACs removed

IMAGES, BATCH, TARGET, ENGINE = 128, 64, 0.5, "onnxruntime"
GOALS = {"resnet56": 1.5, "vgg16": 2.0}  # times as fast in onnxruntime
BY_TIME = "latency target"
WAYS: dict[str, dict[str, Any]] = {
    "every unit by one ratio": {"uniform": True},
    "Algorithm 1": {},
    "round_to=8": {"round_to": 8},
    "round_to=16": {"round_to": 16},
    'streams="coupled"': {"streams": "coupled"},
    'streams="coupled", round_to=8': {"streams": "coupled", "round_to": 8},
}


def ways(args: argparse.Namespace) -> None:
    """Each network pruned in each way, timed in every engine."""
    results = Results(args.out, "Half of the MACs removed, in several engines")
    images = batches(args.data)
    for name in args.network or GOALS:
        model = network(name)
        if args.weights is not None:
            load_weights(model, args.weights)
        models: dict[str, nn.Module] = {"original": model}
        for way in (BY_TIME, *WAYS):
            try:
                models[way] = by_time(model, images, GOALS[name]) if way == BY_TIME else pruned(model, images, way)
            except DecideError as error:
                results.add({"network": name, "way": way, "out_of_reach": str(error)})
        for row in timed_in_all(models, images[0][0][:1]):
            found = {"network": name, **row, "machine_load": round(os.getloadavg()[0], 1)}
            results.add(found, results.find({"network": name, "way": row["way"]}))
            print(found, flush=True)


def timed_in_all(models: dict[str, nn.Module], example: Tensor) -> Iterator[Row]:
    """Milliseconds, speed-up and spread of each network in each engine, all in turns."""
    how: dict[str, Any] = {"rounds": 15, "cpu_time": True}
    plain = prunus.bench(models, example, (BATCH,), ("eager", ENGINE, "compile"), **how)
    folded = prunus.bench(models, example, (BATCH,), ("eager",), fold_bn=True, **how)
    for way in models:
        timings = {str(row.engine): row for row in plain.rows if row.model == way}
        timings["eager, folded"] = next(row for row in folded.rows if row.model == way)
        size = plain.profiles[way]
        yield {
            "way": way,
            "macs": size.macs,
            "selections": size.selections,
            "milliseconds": {engine: round(1e3 * row.timing.median, 2) for engine, row in timings.items()},
            "speedup": {engine: round(row.speedup, 3) for engine, row in timings.items()},
            "spread": {engine: round(row.timing.spread, 3) for engine, row in timings.items()},
            "batch": BATCH,
            "threads": 1,
        }


def batches(data: Path | None) -> list[tuple[Tensor, Tensor]]:
    """Images to decide on, and their classes: CIFAR-10's test images, or noise and any classes."""
    if data is not None:
        opened = load("cifar10", data, mean=MEAN, std=STD)
        return list(opened.loader("test", BATCH, limit=IMAGES))
    noise = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return [(images, torch.arange(len(images)) % 10) for images in torch.split(noise, BATCH)]


def by_time(model: nn.Module, images: list[Any], goal: float) -> nn.Module:
    """As fast as asked for in onnxruntime, without training."""
    how: dict[str, Any] = {"speedup": goal, "engine": ENGINE, "batch": BATCH, "threads": 1}
    return prunus.compress(model, images, images, example=images[0][0][:1], **how).model


def pruned(model: nn.Module, images: list[Any], way: str) -> nn.Module:
    """Half of the MACs removed."""
    options = dict(WAYS[way])
    graph = prunus.trace(model, images[0][0][:1], options.pop("streams", "select"))
    scores = prunus.score(graph, images, metric="reader_energy")
    if options.pop("uniform", False):
        plans = (prunus.uniform(graph, scores, percent / 100) for percent in range(1, 100))
        return prunus.prune(graph, next(p for p in plans if graph.cost(p).macs <= (1 - TARGET) * graph.macs))
    ranking = prunus.sensitivity(graph, scores, images, measure="loss", exact=True, **options)
    return prunus.prune(graph, prunus.decide(graph, scores, ranking, target=TARGET, **options))


# Costs for each image

STEPS = ("loaded", "forward", "score", "sensitivity", "train", "repair", "rebuilt")
AT_ONCE = {"resnet56": 128, "resnet50": 16, "vgg16_imagenet": 8}  # images of a batch
# Images that a step reads on the whole data set: statistics from all training images, decisions from 5,000 (CIFAR-10:
# half of the test images) or 50,000 (ILSVRC-2012: as many, held out of the training images), one epoch of retraining.
CIFAR10 = {"score": 50_000, "sensitivity": 5_000, "train": 50_000}
IMAGENET = {"score": 1_281_167, "sensitivity": 50_000, "train": 1_281_167}


def costs(args: argparse.Namespace) -> None:
    """Each step of each network in a process of its own."""
    if args.one:
        print(json.dumps(cost(args.network[0], args.step[0], args)))
        return
    results = Results(args.out, "What each step costs: seconds of one core, and peak memory")
    for name in args.network or AT_ONCE:
        for step in args.step or STEPS:
            key: Row = {"network": name, "step": step}
            if step in ("repair", "rebuilt"):
                key |= {"num_images": args.num_images, "memory": args.memory} if step == "repair" else {}
            if results.find(key) is None or args.again:
                command = [sys.executable, __file__, "costs", "--one", "--network", name, "--step", step]
                command += ["--num-images", str(args.num_images), "--share", str(args.share)]
                command += ["--memory", args.memory] if args.memory else []
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                row = {**key, **json.loads(done.stdout)}
                results.add(row, results.find(key))
                print(row, flush=True)


def cost(name: str, step: str, args: argparse.Namespace) -> Row:
    """Seconds of this process for a step, and its peak of memory."""
    model = network(name)
    side = 32 if name in ("resnet20", "resnet56", "vgg16") else 224
    shape, size = (3, side, side), AT_ONCE.get(name, 8)
    row: Row = {"images": 2 * size}
    if step in ("repair", "rebuilt"):
        row = _repair_cost(prunus.trace(model, torch.zeros(1, *shape)), step, shape, args)
    elif step != "loaded":
        graph = prunus.trace(model, torch.zeros(1, *shape))
        loader = [(torch.randn(size, *shape), torch.arange(size) % 4) for _ in range(2)]
        weakest = prunus.score(graph, None, "l1")
        _carry_out(step, graph, weakest, loader[:1])  # the first batch of a process pays for kernels and memory
        seconds: list[float] = []
        while not seconds or (len(seconds) < 5 and sum(seconds) < 20):
            start = time.process_time()
            _carry_out(step, graph, weakest, loader)
            seconds.append(time.process_time() - start)
        row["seconds_an_image"] = min(seconds) / row["images"]
        whole = CIFAR10 if side == 32 else IMAGENET
        if step in whole:
            row |= {"images_of_the_whole": whole[step]}
            row |= {"core_hours_on_the_whole": row["seconds_an_image"] * whole[step] / 3600}
    row["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return row


def _carry_out(step: str, graph: prunus.ChannelGraph, weakest: prunus.Scores, loader: list[Any]) -> None:
    if step == "sensitivity":
        prunus.sensitivity(graph, weakest, loader, exact=True)
    elif step == "score":
        prunus.score(graph, loader, [name for name, metric in prunus.METRICS.items() if metric.needs == "moments"])
    elif step == "train":  # steps as `prunus.fit` does them
        model = graph.model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    else:
        forward(graph.model, [images for images, _ in loader])


@torch.no_grad()
def forward(model: nn.Module, images: list[Tensor]) -> None:
    """A pass over these batches."""
    for batch in images:
        model(batch)


def _repair_cost(graph: prunus.ChannelGraph, step: str, shape: tuple[int, ...], args: argparse.Namespace) -> Row:
    """A share of every private unit is removed and repaired, or its channels are scored by `rebuilt`."""

    def images(count: int = args.num_images) -> Iterator[Tensor]:  # made as they are asked for, the same each time
        for start in range(0, count, 50):
            yield torch.randn(min(50, count - start), *shape, generator=torch.Generator().manual_seed(start))

    few = [part for batch in images(min(args.num_images, 128)) for part in batch.split(8 if shape[1] > 64 else 64)]
    forward(graph.model, few[:1])
    start = time.process_time()
    forward(graph.model, few)
    plain = (time.process_time() - start) * args.num_images / sum(len(part) for part in few)
    start = time.process_time()
    row: Row = {"num_images": args.num_images}
    if step == "rebuilt":
        prunus.score(graph, prunus.repair_each(graph, images()), metric="rebuilt")
    else:
        inner = {name: unit for name, unit in graph.units.items() if unit.kind == "private"}
        keep = {n: range(int(u.width * (1 - args.share)) // u.granule * u.granule) for n, u in inner.items()}
        plan = prunus.Plan.of(graph, keep)
        prunus.repair(graph, plan, images(), memory=args.memory)
        row |= {"memory": args.memory, "share": args.share}
        row |= {"macs_removed": round(1 - graph.cost(plan).macs / graph.macs, 3)}
    spent = time.process_time() - start
    row |= {f"{step}_core_seconds": round(spent, 1), "forward_core_seconds": round(plain, 1)}
    return {**row, "forward_passes": round(spent / plain, 1)}


def main() -> None:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tables", "ways", "costs"))
    parser.add_argument("--network", action="append", help="only this one; repeat for several")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--step", choices=STEPS, action="append")
    parser.add_argument("--weights", type=Path, help="trained weights, for `ways`")
    parser.add_argument("--data", type=Path, help="folder that holds CIFAR-10, for `ways`")
    parser.add_argument("--num-images", type=int, default=500, help="for the repair")
    parser.add_argument("--memory", help="bound of the repair, such as 4G")
    parser.add_argument("--share", type=float, default=0.5, help="of every private unit, for the repair")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--again", action="store_true", help="measure again what is in the file")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"tables": tables, "ways": ways, "costs": costs}[args.what](args)


if __name__ == "__main__":
    main()
