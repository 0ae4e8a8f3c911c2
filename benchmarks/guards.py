"""`make bench`: ratios measured in one run, each with a bound that it must keep; fails if one is not kept.

    python benchmarks/guards.py [graph] [training] [scoring] [deciding] [repair] [shipping] [roundtrip] [--out FILE]

graph      tracing and its proof, beside torch-pruning's graph of the same network
training   `fit` and `evaluate` beside bare loops, the loader, and a teacher whose answers are kept
scoring    a pass that scores all units beside a forward pass; DI and MMD beside their definitions; memory
deciding   the sensitivity analysis beside plain evaluations; $PRUNUS_WEIGHTS and $PRUNUS_DATA may name the folders of
           resnet56-cifar10.safetensors and CIFAR-10; without them a small network is trained on digits first
repair     the repair of half of ResNet-56 beside forward passes of the same images
shipping   a latency target: ResNet-56 1.5 times and VGG-16 twice as fast in onnxruntime, timed beside the originals
roundtrip  every built-in network pruned, repaired, saved, loaded in a new process, exported and run in onnxruntime;
           long, so only if it is named

Two things that are compared take turns on one core, CPU time is counted, and a ratio is that of the least times: other
work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus
from benchmarks import MEAN, ROOT, STD, Results, Row
from prunus.scoring.evidence import Maps
from prunus.zoo import models
from prunus.zoo.data import load
from prunus.zoo.images import MemoryImages
from prunus.zoo.loader import Loader, Order, pad_crop_mirror
from prunus.zoo.weights import load_weights
from tests import proof, zoo_nets

Batches = list[tuple[Tensor, Tensor]]
CLASSES = 10


def row(name: str, ratio: float, bound: float, better: str, **more: Any) -> Row:
    """One line of the table; better: "higher" or "lower"."""
    met = ratio >= bound if better == "higher" else ratio <= bound
    return {"name": name, "ratio": ratio, "bound": bound, "better": better, "met": met, **more}


def cpu_seconds(act: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    act()
    return time.process_time() - start


def turn_about(left: Callable[[], Any], right: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The least CPU seconds that each took, in turns after a warm-up."""
    left(), right()
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[side].append(cpu_seconds((left, right)[side]))
    return min(seconds[0]), min(seconds[1])


@torch.no_grad()
def forward(model: nn.Module, batches: Batches) -> None:
    """A plain pass over these batches."""
    for images, _ in batches:
        model(images)


# Tracing and its proof


def graph() -> list[Row]:
    """Ours: forward pass, labels, units, trial plans, without and with the proof by running. torch-pruning: building
    the dependency graph and listing all groups; it proves nothing."""
    image = torch.zeros(1, 3, 224, 224)
    names = ("resnet50", "densenet121", "efficientnet_b0")
    networks = {name: (zoo_nets.create(f"torchvision:{name}").eval(), image) for name in names}
    networks["resnet110 (CIFAR)"] = models.create("resnet110").eval(), torch.zeros(1, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch-pruning's, about parameters it does not know
        rows = [each for name, (model, example) in networks.items() for each in _graph_rows(name, model, example)]
    return [*rows, _proof_row()]


def _proof_row() -> Row:
    """The whole of `trace` beside ten passes of one image: it runs the network in two modes, whole and pruned."""
    model, image = models.create("resnet56").eval(), torch.zeros(1, 3, 32, 32)
    passes = [(image, image)] * 10
    proven, plain = turn_about(lambda: prunus.trace(model, image), lambda: forward(model, passes), 15)
    title = "trace and proof of ResNet-56 / forward passes of one image"
    return row(title, proven / (plain / len(passes)), 35.0, "lower", seconds=round(proven, 3))


def _graph_rows(name: str, model: nn.Module, example: Tensor) -> list[Row]:
    import torch_pruning

    def theirs() -> None:
        built = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example)
        list(built.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear]))

    traced, proven, peer = [], [], []
    for _ in range(7):
        traced.append(cpu_seconds(lambda: prunus.trace(model, example, check=False)))
        proven.append(cpu_seconds(lambda: prunus.trace(model, example)))
        peer.append(cpu_seconds(theirs))
    found = prunus.trace(model, example)
    plan = prunus.Plan.of(found, proof.random_keep(found, seed=0))
    cut = min(cpu_seconds(lambda: prunus.prune(found, plan)) for _ in range(7))
    ours, whole, other = min(traced), min(proven), min(peer)
    seconds = {"ours": round(ours, 3), "with proof": round(whole, 3), "torch-pruning": round(other, 3)}
    return [
        row(f"graph of {name}: ours / torch-pruning's", ours / other, 1.0, "lower", seconds=seconds),
        row(f"graph and proof by running of {name}: ours / torch-pruning's graph", whole / other, 4.0, "lower"),
        row(f"seconds to trace and prune {name}, both proven (prune alone {cut:.2f})", whole + cut, 1.5, "lower"),
    ]


# Training and evaluation

BATCH, STEPS, ROUNDS = 128, 2, 20


def training() -> list[Row]:
    """ResNet-20 on random images: speed does not depend on what they show."""
    if sys.platform == "linux":  # glibc keeps freed memory: page faults are the noisiest part of a step
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    model = models.create("resnet20")
    images, labels = torch.randn(STEPS * BATCH, 3, 32, 32), torch.randint(0, 10, (STEPS * BATCH,))
    batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
    preset = prunus.Preset("bench", epochs=1, lr=0.01, batch_size=BATCH)
    ours, bare = turn_about(
        lambda: prunus.fit(model, batches, preset=preset, device="cpu", progress=False),
        lambda: _bare_training(model, batches, preset),
        ROUNDS,
    )
    one = batches[:1]
    mine, plain = turn_about(lambda: prunus.evaluate(model, one), lambda: _bare_evaluation(model, one), 4 * ROUNDS)
    return [
        row("training: images/s of fit / of a bare loop", bare / ours, 0.95, "higher"),
        *_loading(bare / STEPS),
        _distillation(model, one),
        row("evaluation: images/s of evaluate / of a bare loop", plain / mine, 0.95, "higher"),
    ]


def _bare_training(model: nn.Module, batches: Batches, preset: prunus.Preset) -> None:
    """What one would write by hand with the same settings, a fresh copy of the weights included, as in fit."""
    twin = models.create("resnet20").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    twin.load_state_dict(model.state_dict())
    settings = {"lr": preset.lr, "momentum": preset.momentum, "weight_decay": preset.weight_decay}
    optimizer = torch.optim.SGD(twin.parameters(), nesterov=True, **settings)
    twin.train()
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(twin(images.to(memory_format=torch.channels_last)), labels).backward()
        optimizer.step()


@torch.no_grad()
def _bare_evaluation(model: nn.Module, batches: Batches) -> float:
    model.eval()
    hits = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
    return hits / sum(len(labels) for _, labels in batches)


def _distillation(model: nn.Module, batches: Batches) -> Row:
    """Whole runs, in which the epoch that asks the teacher is one of ten, beside runs without a teacher."""
    found = prunus.trace(model, batches[0][0][:1])
    inner = {name: range(unit.width // 2) for name, unit in found.units.items() if unit.kind == "private"}
    small = prunus.prune(found, prunus.Plan.of(found, inner))
    preset = prunus.Preset("bench", epochs=10, lr=0.01, batch_size=BATCH)

    def run(**teaching: Any) -> Callable[[], Any]:
        return lambda: prunus.fit(small, batches, preset=preset, device="cpu", progress=False, **teaching)

    kept, bare = turn_about(run(teacher=model, views=1), run(), 4)
    return row("distillation, 10 epochs: images/s with kept answers / without teacher", bare / kept, 0.9, "higher")


def _loading(step: float) -> list[Row]:
    """Pad, crop and mirror, and the whole loader, beside a training step."""
    pixels = torch.randint(0, 256, (20 * BATCH, 3, 32, 32), dtype=torch.uint8)
    kept = MemoryImages.whole(pixels, np.zeros(len(pixels), dtype=np.int64))
    order = Order(len(pixels), BATCH, shuffle=True)

    def loader() -> None:
        for _ in Loader(kept, order, ("a",), (0.5,) * 3, (0.25,) * 3, augment=True, mirror=True):
            pass

    def alone() -> None:
        for batch, part in enumerate(pixels.split(BATCH)):
            pad_crop_mirror(part, order.rng(0, batch), mirror=True)

    whole, augment = turn_about(loader, alone, ROUNDS)
    return [
        row("augmentation of a batch / a training step of ResNet-20", augment / 20 / step, 0.05, "lower"),
        row("loading, augmentation and normalisation / a training step", whole / 20 / step, 0.05, "lower"),
    ]


# Scoring

PASSES = (("resnet56", 128, 8, 6), ("vgg16_imagenet", 8, 3, 5), ("resnet50", 8, 8, 5))  # batch, batches, rounds
MEMORY = """
import resource, sys, torch
import prunus
from prunus.zoo.models import create, example

torch.set_num_threads(1)
torch.manual_seed(0)
graph = prunus.trace(create("resnet20"), example("resnet20"))
batches = ((torch.randn(100, 3, 32, 32), torch.arange(100) % 10) for _ in range(int(sys.argv[1]) // 100))
prunus.score(graph, batches, "gsd")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def scoring() -> list[Row]:
    """Passes, DI and MMD beside their definitions in the same precision, and peak memory over ten times the images."""
    logging.getLogger("prunus").setLevel(logging.ERROR)  # most of the 1,000 classes have no image here
    torch.manual_seed(0)
    command = [sys.executable, "-c", MEMORY]
    peaks = [
        int(subprocess.run([*command, str(n)], capture_output=True, check=True, text=True, cwd=ROOT).stdout)
        for n in (1000, 10_000)
    ]
    return [
        *(_pass(*setting) for setting in PASSES),
        _di(),
        _mmd(),
        row("peak memory of a G-SD pass, 10,000 / 1,000 images, resnet20", peaks[1] / peaks[0], 1.05, "lower"),
    ]


def _pass(name: str, batch: int, batches: int, rounds: int) -> Row:
    model, example = models.create(name).eval(), models.example(name)
    found = prunus.trace(model, example)
    labels = torch.arange(batch) % min(CLASSES, batch // 2)
    loader = [(torch.randn(batch, *example.shape[1:]), labels) for _ in range(batches)]
    metrics = [name for name, metric in prunus.METRICS.items() if metric.needs == "moments"]
    ours, plain = turn_about(lambda: prunus.score(found, loader, metrics), lambda: forward(model, loader), rounds)
    title = f"scoring all units by {len(metrics)} metrics / plain forward, {name} batch {batch}"
    return row(title, ours / plain, 1.10, "lower")


def _di() -> Row:
    maps = torch.randn(1000, 2, 1024, dtype=torch.float64).relu()
    labels = torch.arange(1000) % CLASSES

    def by_inverse(maps: Tensor, rho: float = 1e-4) -> float:
        """tr([S + rho I]^-1 S_B) as it is written, scatter matrices by matrix products."""
        centred = maps - maps.mean(0)
        scatter = centred.T @ centred
        means = torch.stack([centred[labels == c].mean(0) for c in range(CLASSES)])
        between = (means * torch.bincount(labels).to(maps)[:, None]).T @ means
        return float(torch.trace(torch.linalg.inv(scatter + rho * torch.eye(len(scatter), dtype=maps.dtype)) @ between))

    ours, explicit = turn_about(
        lambda: prunus.METRICS["di"].score(Maps("u", labels, maps, 1 << 30)),
        lambda: [by_inverse(maps[:, c]) for c in range(maps.shape[1])],
        4,
    )
    return row("explicit inverse / DI, N = 1,000, d = 1,024", explicit / ours, 3, "higher")


def _mmd() -> Row:
    maps = torch.randn(120, 1, 64, dtype=torch.float64).relu()
    labels = torch.arange(120) % CLASSES

    def looped(maps: list[list[float]], labels: list[int]) -> float:
        """The definition, pair by pair; each kernel value is computed once and added to the sums of its classes."""
        sums = [[0.0] * CLASSES for _ in range(CLASSES)]
        for x, i in zip(maps, labels, strict=True):
            for y, j in zip(maps, labels, strict=True):
                sums[i][j] += math.exp(-sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / 2)
        counts, total = [labels.count(c) for c in range(CLASSES)], 0.0
        for c, n in enumerate(counts):
            rest = [k for k in range(CLASSES) if k != c]
            m = sum(counts[k] for k in rest)
            within = sum(sums[a][b] for a in rest for b in rest)
            across = sum(sums[c][b] for b in rest)
            total += sums[c][c] / n**2 + within / m**2 - 2 * across / (n * m)
        return total / CLASSES

    ours, loops = turn_about(
        lambda: prunus.METRICS["mmd"].score(Maps("u", labels, maps, 1 << 30)),
        lambda: looped([m.tolist() for m in maps[:, 0]], labels.tolist()),
        2,
    )
    return row("loops over pairs / MMD, N = 120, d = 64", loops / ours, 100, "higher")


# Deciding


def deciding() -> list[Row]:
    """Racing and the exact analysis beside one plain evaluation for each unit, and what racing's choice lacks."""
    model, name, train, holdout = _decided_network()
    found = prunus.trace(model, holdout[0][0][:1])
    scores = prunus.score(found, train, "reader_energy")
    start = time.process_time()
    racing = prunus.sensitivity(found, scores, holdout)
    raced, start = time.process_time() - start, time.process_time()
    exact = prunus.sensitivity(found, scores, holdout, exact=True)
    whole = time.process_time() - start
    units = list(exact.tried)
    chosen = units[len(units) // 12 :: max(1, len(units) // 6)]  # a sixth of the units is enough to time
    prunus.evaluate(model, holdout[:1])  # warms up
    start = time.process_time()
    for unit in chosen:
        weakest = set(np.argsort(scores.values[unit], kind="stable")[: exact.tried[unit].channels].tolist())
        kept = [channel for channel in range(found.units[unit].width) if channel not in weakest]
        with prunus.zeroed(found, {unit: kept}):
            prunus.evaluate(model, holdout)
    plain = (time.process_time() - start) / len(chosen) * len(units)
    third = round(len(units) / 3)

    def mean(ranking: prunus.Sensitivity) -> float:
        return float(np.mean([exact.tried[unit].accuracy or 0.0 for unit in ranking.ranked()[:third]]))

    # A shallow network has less in front of a unit that need not be computed again, and few images to leave out.
    most = (0.2, 0.6) if name.startswith("resnet56") else (0.4, 0.85)
    return [
        row(f"racing / {len(units)} plain evaluations, {name}", raced / plain, most[0], "lower"),
        row(f"exact sensitivity / {len(units)} plain evaluations, {name}", whole / plain, most[1], "lower"),
        row(f"points that racing's {third} units lack of the best", 100 * (mean(exact) - mean(racing)), 0.1, "lower"),
    ]


def _decided_network() -> tuple[nn.Module, str, Batches, Batches]:
    """A trained network, its name, training batches and held-out batches."""
    weights = Path(os.environ.get("PRUNUS_WEIGHTS", "weights")) / "resnet56-cifar10.safetensors"
    if weights.exists() and "PRUNUS_DATA" in os.environ:
        data = load("cifar10", os.environ["PRUNUS_DATA"], holdout="none", mean=MEAN, std=STD)
        model = models.create("resnet56").eval()
        load_weights(model, weights)
        train, test = data.loader("train", 125, limit=500), data.loader("test", 125, limit=2000)
        return model, "resnet56 on cifar10", list(train), list(test)
    data = load("digits", size=16, holdout="train:0.4")
    torch.manual_seed(0)
    fresh = models.create("resnet20", num_classes=10, in_channels=1)
    train = data.loader("train", 64)
    model = prunus.fit(fresh, list(train), epochs=3, lr=0.05, progress=False).model.eval()
    return model, "resnet20 on digits", list(train), list(data.loader("holdout", 64))


# Repair


def repair() -> list[Row]:
    """Half of the inner channels of ResNet-56, 128 random images."""
    torch.manual_seed(0)
    model, images = models.create("resnet56").eval(), torch.randn(128, 3, 32, 32)
    found = prunus.trace(model, images[:1])
    inner = {name: range(unit.width // 2) for name, unit in found.units.items() if unit.kind == "private"}
    plan = prunus.Plan.of(found, inner)
    batches = [(part, torch.zeros(len(part))) for part in images.split(64)]
    solved, plain = turn_about(lambda: prunus.repair(found, plan, images), lambda: forward(model, batches), 2)
    scored = cpu_seconds(lambda: prunus.score(found, prunus.repair_each(found, images), "rebuilt"))
    return [
        row("repair of half of ResNet-56 / forward passes of the same images", solved / plain, 10.0, "lower"),
        row("scores `rebuilt` of ResNet-56 / forward passes of the same images", scored / plain, 30.0, "lower"),
    ]


# Shipping


def shipping() -> list[Row]:
    """The speed-up that was asked for, timed again beside the original; a second time may come out 5% lower."""
    from benchmarks import latency

    rows, images = [], latency.batches(None)
    for name, goal in latency.GOALS.items():
        model = latency.network(name)
        both = {"original": model, "pruned": latency.by_time(model, images, goal)}
        timed = prunus.bench(both, images[0][0][:1], (latency.BATCH,), (latency.ENGINE,), rounds=15, cpu_time=True)
        ratio = timed.best("pruned", latency.BATCH).speedup
        title = f"{name}: measured speed-up of {goal:g}x asked, {latency.ENGINE}"
        rows.append(row(title, ratio, round(0.95 * goal, 3), "higher"))
    return rows


def roundtrip() -> list[Row]:
    """30% of every unit goes (L2 norm); predictions of the loaded and of the exported network are those from before."""
    from tests.ship.roundtrip import there

    rows = []
    for name in models.names():
        with tempfile.TemporaryDirectory() as folder:
            facts = there(name, Path(folder))
            command = [sys.executable, "-m", "tests.ship.roundtrip", folder, name]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        facts |= json.loads(done.stdout.splitlines()[-1])[name] if done.returncode == 0 else {"error": done.stderr}
        same = float(facts.get("same predictions", False))
        rows.append(row(f"{name}: same predictions", same, 1.0, "higher", network=name, **facts))
    return rows


SECTIONS: dict[str, Callable[[], list[Row]]] = {
    "graph": graph,
    "training": training,
    "scoring": scoring,
    "deciding": deciding,
    "repair": repair,
    "shipping": shipping,
    "roundtrip": roundtrip,
}


def main() -> int:
    """Run the sections, print their rows as one table; 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all but roundtrip by default")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(args.out, "Ratios measured in one run, with the bounds that they must keep", "make bench")
    measured = []
    for section in args.sections or [name for name in SECTIONS if name != "roundtrip"]:
        start = time.perf_counter()
        for each in SECTIONS[section]():
            measured.append(each)
            results.add({"section": section, **each}, results.find({"section": section, "name": each["name"]}))
        print(f"{section}: {time.perf_counter() - start:.0f} s", flush=True)
    width = max(len(each["name"]) for each in measured)
    print(f"\n{'':{width}}  measured  bound")
    for each in measured:
        sign, missed = ">=" if each["better"] == "higher" else "<=", "" if each["met"] else "NOT MET"
        print(f"{each['name']:{width}}  {each['ratio']:8.3f}  {sign} {each['bound']:<6} {missed}")
    return 0 if all(each["met"] for each in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
