"""What scoring, sensitivity and retraining cost for each image, measured, and what that makes on whole data sets.

    python benchmarks/costs.py --out docs/results/costs.json

One thread, CPU seconds, random images of the right size and random weights: neither changes what is computed. Each
step of each network runs in a process of its own, whose peak memory is what it takes (the interpreter, torch and the
weights included; `loaded` is that alone), once on one batch before it is timed and then up to five times within 20
seconds, of which the least counts. Sensitivity is exact: all units on all images; racing reads a part of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import prunus as sc
from prunus.score.metrics import METRICS
from prunus.score.score import score
from prunus.util.files import write_atomically
from prunus.zoo.models import create, example

NETWORKS = {"resnet56": 128, "resnet50": 16, "vgg16_imagenet": 8}  # images of a batch
STEPS = ("loaded", "forward", "score", "sensitivity", "train")
# Images that a step reads on the whole data set: statistics from all training images, decisions from 5,000 (CIFAR-10:
# half of the test images) or 50,000 (ILSVRC-2012: as many, held out of the training images), one epoch of retraining.
WHOLE = {
    "resnet56": {"score": 50_000, "sensitivity": 5_000, "train": 50_000},
    "resnet50": {"score": 1_281_167, "sensitivity": 50_000, "train": 1_281_167},
    "vgg16_imagenet": {"score": 1_281_167, "sensitivity": 50_000, "train": 1_281_167},
}
MOMENT = [name for name, metric in METRICS.items() if metric.needs == "moments"]


def measure(name: str, step: str) -> dict[str, Any]:
    """CPU seconds for an image, and the peak of memory in bytes, of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = NETWORKS[name]
    model = create(name).eval()
    image = example(name)
    loader = [(torch.randn(batch, *image.shape[1:]), torch.arange(batch) % 4) for _ in range(2)]
    found: dict[str, Any] = {"images": 2 * batch}
    if step != "loaded":
        graph = sc.trace(model, image)
        weakest = sc.score(graph, loader[:1], "l1")
        _carry_out(step, graph, weakest, loader[:1])  # the first batch of a process pays for kernels and memory
        seconds: list[float] = []
        while not seconds or (len(seconds) < 5 and sum(seconds) < 20):
            start = time.process_time()
            units = _carry_out(step, graph, weakest, loader)
            seconds.append(time.process_time() - start)
        if units:
            found["units"] = units
        found["seconds an image"] = min(seconds) / found["images"]
    found["peak bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found


def _carry_out(step: str, graph: sc.ChannelGraph, weakest: sc.Scores, loader: list[tuple[Tensor, Tensor]]) -> int:
    """The step on these batches; the units that were judged, if any."""
    if step == "sensitivity":
        return len(sc.sensitivity(graph, weakest, loader, exact=True).tried)
    if step == "score":
        score(graph, loader, MOMENT)
    elif step == "train":
        _train(graph.model, loader)
    else:
        with torch.inference_mode():
            for images, _ in loader:
                graph.model(images)
    return 0


def _train(model: torch.nn.Module, loader: list[tuple[Tensor, Tensor]]) -> None:
    """Steps as `prunus.fit` does them."""
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True)
    for images, labels in loader:
        loss = F.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    """Measure every step in a process of its own, and write as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "STEP"), help="measure one, print JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one)))
        return
    table: dict[str, Any] = {}
    for name in NETWORKS:
        table[name] = {}
        for step in STEPS:
            command = [sys.executable, __file__, "--one", name, step]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(done.stdout)
            if step in WHOLE[name]:
                row["images of the whole"] = WHOLE[name][step]
                row["core hours on the whole"] = row["seconds an image"] * WHOLE[name][step] / 3600
            table[name][step] = row
            rounded = {key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}
            print(name, step, rounded, flush=True)
            if args.out:
                args.out.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(args.out, (json.dumps(table, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
