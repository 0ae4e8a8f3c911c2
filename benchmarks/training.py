"""Training and evaluation beside bare PyTorch, as ratios within one run: `python benchmarks/training.py`.

ResNet-20, batch 128, 32x32 images drawn at random (speed does not depend on what they show). Ours and the bare loop
take turns on one core, and CPU time is counted, so that other work on the machine disturbs little; a ratio is that
of the least times. Distillation is that of a ResNet-20 without half of its inner channels from the whole one, and it is
measured over whole runs of DISTILLED epochs: the epoch in which the teacher answers is one of them.

`python benchmarks/training.py --steps` prints the images per second of a bare training step instead: plain,
channels_last, bf16 and torch.compile. They depend on the processor, so there is no bound.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc
from benchmarks.ratios import Row, row, say, turn_about
from prunus.tasks.evaluate import evaluate
from prunus.train.fit import fit
from prunus.train.settings import Preset
from prunus.zoo.images import MemoryImages
from prunus.zoo.loader import MemoryLoader, Order, pad_crop_mirror
from prunus.zoo.models import create

BATCH, STEPS, ROUNDS = 128, 2, 20
DISTILLED, TURNS = 10, 4


def main() -> list[Row]:
    """The rows: each a name, a measured ratio, the bound it must keep, and whether it does."""
    _keep_freed_memory()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _rows()
    finally:
        torch.set_num_threads(threads)


def _rows() -> list[Row]:
    model = create("resnet20")
    images, labels = torch.randn(STEPS * BATCH, 3, 32, 32), torch.randint(0, 10, (STEPS * BATCH,))
    batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
    preset = Preset("bench", epochs=1, lr=0.01, batch_size=BATCH)
    ours, bare = turn_about(
        lambda: fit(model, batches, preset=preset, device="cpu"), lambda: _bare_training(model, batches, preset), ROUNDS
    )
    rows = [row("training: images/s of fit / of a bare loop", bare / ours, 0.95, "higher")]
    rows += _augmentation(bare / STEPS)
    rows += _distillation(model, batches[:1])
    one = batches[:1]
    ours, bare = turn_about(lambda: evaluate(model, one), lambda: _bare_evaluation(model, one), 4 * ROUNDS)
    rows.append(row("evaluation: images/s of evaluate / of a bare loop", bare / ours, 0.95, "higher"))
    return rows


def _distillation(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> list[Row]:
    """Runs with a teacher whose answers are kept beside runs without a teacher."""
    graph = sc.trace(model, batches[0][0][:1])
    inner = {name: range(unit.width // 2) for name, unit in graph.units.items() if unit.kind == "private"}
    small = sc.prune(graph, sc.Plan.of(graph, inner))
    preset = Preset("bench", epochs=DISTILLED, lr=0.01, batch_size=BATCH)

    def run(**teaching: Any) -> Callable[[], Any]:
        return lambda: fit(small, batches, preset=preset, device="cpu", progress=False, **teaching)

    kept, bare = turn_about(run(teacher=model, views=1), run(), TURNS)
    name = f"distillation, {DISTILLED} epochs: images/s with kept answers / without teacher"
    return [row(name, bare / kept, 0.9, "higher")]


def _keep_freed_memory() -> None:
    """Tell glibc not to hand freed memory back: page faults are the noisiest part of a step, and nobody's merit."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def _bare_training(model: nn.Module, batches: list[tuple[Tensor, Tensor]], preset: Preset) -> None:
    """What one would write by hand with the same settings, a fresh copy of the weights included, as in fit."""
    twin = create("resnet20").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(
        twin.parameters(), lr=preset.lr, momentum=preset.momentum, nesterov=True, weight_decay=preset.weight_decay
    )
    twin.train()
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(twin(images.to(memory_format=torch.channels_last)), labels).backward()
        optimizer.step()


@torch.no_grad()
def _bare_evaluation(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    hits = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches)
    return hits / sum(len(labels) for _, labels in batches)


def _augmentation(step: float) -> list[Row]:
    """Seconds that pad, crop and mirror add to a batch, and those of the whole loader, as shares of a training step."""
    pixels = torch.randint(0, 256, (20 * BATCH, 3, 32, 32), dtype=torch.uint8)
    kept = MemoryImages.whole(pixels, np.zeros(len(pixels), dtype=np.int64))
    order = Order(len(pixels), BATCH, shuffle=True)

    def loader() -> None:
        for _ in MemoryLoader(kept, order, ("a",), (0.5,) * 3, (0.25,) * 3, augment=True, mirror=True):
            pass

    def alone() -> None:
        for batch, part in enumerate(pixels.split(BATCH)):
            pad_crop_mirror(part, order.rng(0, batch), mirror=True)

    whole, augment = turn_about(loader, alone, ROUNDS)
    return [
        row("augmentation of a batch / a training step of ResNet-20", augment / 20 / step, 0.05, "lower"),
        row("loading, augmentation and normalisation / a training step", whole / 20 / step, 0.05, "lower"),
    ]


def steps() -> None:
    """Images per second of a training step in several ways: the median of nine, processor time, one thread."""
    _keep_freed_memory()
    torch.set_num_threads(1)
    for words in ("plain", "channels_last", "channels_last bf16", "compile", "compile channels_last"):
        print(f"{words:24} {BATCH / _step_seconds(set(words.split())):6.0f} images/s", flush=True)


def _step_seconds(words: set[str]) -> float:
    model: Any = create("resnet20").train()
    layout = torch.channels_last if "channels_last" in words else torch.contiguous_format
    images = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (BATCH,))
    model = model.to(memory_format=layout)
    run = torch.compile(model) if "compile" in words else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    spent = []
    for _ in range(12):
        start = time.process_time()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in words):
            outputs = run(images)
        F.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()
        spent.append(time.process_time() - start)
    return float(np.median(spent[3:]))


if __name__ == "__main__":
    if "--steps" in sys.argv:
        steps()
    else:
        say(main())
