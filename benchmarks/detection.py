"""Detection: scenes of MNIST digits, detectors trained on them, pruned, repaired and trained on; AP and time of each.

    python benchmarks/detection.py scenes DIR         # images and YOLO labels; MNIST comes from `prunus data mnist`
    python benchmarks/detection.py train DIR          # YOLOv8n by ultralytics' own trainer; goes on where it stopped

    prunus prune yolo:yolov8n.yaml --weights best.pt --data folder:DIR --size 192 --holdout test:0.5 --speedup 1.4 \\
        --num-images 200 --set num_repair_images=300 --no-timing --out RUN
    python benchmarks/detection.py measure DIR --run RUN --weights best.pt --out FILE.json

`measure` writes a row for each network as it is known: unpruned, before repair, repaired, after mimicking, retrained by
ultralytics, and torch-pruning's at the same share of MACs. AP is that of the test images that nothing decided on; time
is that of one image in onnxruntime on one thread, beside the unpruned network. A row that the file has is not measured
again.
The licence of ultralytics is the AGPL.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from PIL import Image

from benchmarks import Results

SIDE, MOST_DIGITS, SIZES = 192, 6, (24, 64)  # of a scene in pixels, digits in it, and the height of a digit
PARTS = {"train": (1000, "train"), "val": (200, "train"), "test": (400, "test")}  # scenes, and whose digits
# Of ultralytics' trainer, which runs on the CPU, without what would blur what is compared.
TRAINER: dict[str, Any] = {
    "imgsz": SIDE,
    "batch": 16,
    "device": "cpu",
    "workers": 0,
    "amp": False,
    "plots": False,
    "seed": 0,
    "mosaic": 0.0,
    "fliplr": 0.0,
    "optimizer": "AdamW",
}


def scene(digits: Any, labels: Any, rng: np.random.Generator) -> tuple[Any, list[list[float]]]:
    """A coloured, noisy scene [SIDE, SIDE, 3] of digits, and a row (class, x, y, width, height) in [0, 1] for each."""
    side, lines = SIDE, []
    rows, columns = np.mgrid[0:side, 0:side] / side
    ground = (
        rng.uniform(0.0, 0.5, 3)
        + 0.25 * np.stack([rows * rng.uniform(-1, 1), columns * rng.uniform(-1, 1)]).sum(0)[..., None]
    )
    picture = ground + rng.normal(0, 0.06, (side, side, 1))
    boxes: list[tuple[int, int, int, int]] = []
    for _ in range(rng.integers(1, MOST_DIGITS + 1)):
        number = int(rng.integers(len(digits)))
        size = int(rng.integers(SIZES[0], SIZES[1] + 1))
        ink = np.asarray(Image.fromarray(digits[number]).resize((size, size), Image.Resampling.BILINEAR)) / 255
        there = np.argwhere(ink > 0.3)
        (top, left), (bottom, right) = there.min(0), there.max(0) + 1
        ink = ink[top:bottom, left:right]
        height, width = ink.shape
        y, x = int(rng.integers(0, side - height)), int(rng.integers(0, side - width))
        if any(x < b[2] and b[0] < x + width and y < b[3] and b[1] < y + height for b in boxes):
            continue
        colour = rng.uniform(0.6, 1.0, 3)
        part = picture[y : y + height, x : x + width]
        part[:] = part * (1 - ink[..., None]) + colour * ink[..., None]
        boxes.append((x, y, x + width, y + height))
        centre = (x + width / 2) / side, (y + height / 2) / side
        lines.append([int(labels[number]), *centre, width / side, height / side])
    return (picture.clip(0, 1) * 255).round().astype(np.uint8), lines


def write_scenes(folder: Path) -> Path:
    """Scenes in the layout of ultralytics; the path of its data.yaml."""
    from prunus.zoo.data import load

    mnist = load("mnist", holdout="none")
    for number, (part, (count, source)) in enumerate(PARTS.items()):
        images: Any = mnist.parts[source]  # type: ignore[index]
        digits, rng = images.pixels[:, 0].numpy()[images.rows], np.random.default_rng([0, number])
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True, exist_ok=True)
        for n in range(count):
            picture, rows = scene(digits, images.labels, rng)
            Image.fromarray(picture).save(folder / "images" / part / f"{n:04d}.png")
            lines = [" ".join([str(row[0]), *(f"{value:.6f}" for value in row[1:])]) for row in rows]
            (folder / "labels" / part / f"{n:04d}.txt").write_text("".join(f"{line}\n" for line in lines))
    listed = "".join(f"  {n}: digit {n}\n" for n in range(10))
    (folder / "data.yaml").write_text(
        f"path: {folder.resolve()}\ntrain: images/train\nval: images/val\ntest: images/test\nnames:\n{listed}"
    )
    return folder / "data.yaml"


def train(folder: Path, out: Path, epochs: int) -> None:
    """YOLOv8n from random weights, by ultralytics' own trainer. An interrupted training goes on."""
    from ultralytics import YOLO  # type: ignore[import-not-found, unused-ignore]

    last = out / "yolov8n" / "weights" / "last.pt"
    if last.exists():
        YOLO(last).train(resume=True)
        return
    place = {"data": str(folder / "data.yaml"), "project": str(out), "name": "yolov8n", "exist_ok": True}
    YOLO("yolov8n.yaml").train(epochs=epochs, hsv_h=0.5, lr0=0.002, warmup_epochs=1.0, **place, **TRAINER)


def without_chunks(model: Any) -> None:
    """Replace the blocks of a YOLOv8 that divide their channels: torch-pruning 1.6.1 does not follow `chunk` there.

    The first convolution is two of half its width, with its weights, so that the network computes the same.
    """
    import torch
    from torch import nn

    class Halves(nn.Module):
        def __init__(self, block: Any) -> None:
            super().__init__()
            half = block.cv1.conv.out_channels // 2
            self.first, self.second = copy.deepcopy(block.cv1), copy.deepcopy(block.cv1)
            for part, taken in ((self.first, slice(None, half)), (self.second, slice(half, None))):
                part.conv.out_channels, part.bn.num_features = half, half
                part.conv.weight = nn.Parameter(part.conv.weight[taken].detach().clone())
                for name in ("weight", "bias"):
                    setattr(part.bn, name, nn.Parameter(getattr(part.bn, name)[taken].detach().clone()))
                for name in ("running_mean", "running_var"):
                    setattr(part.bn, name, getattr(part.bn, name)[taken].clone())
            self.m, self.cv2, self.f, self.i, self.type = block.m, block.cv2, block.f, block.i, block.type

        def forward(self, x: Any) -> Any:
            parts = [self.first(x), self.second(x)]
            for inner in self.m:
                parts.append(inner(parts[-1]))
            return self.cv2(torch.cat(parts, 1))

    for number, block in enumerate(model.model):
        if type(block).__name__ == "C2f":
            model.model[number] = Halves(block)


def measure(folder: Path, run: Path, weights: Path, out: Path, steps: int, epochs: int) -> None:
    """A row for each network, written as soon as it is known."""
    import torch

    import prunus
    from prunus.graph.plan import Plan
    from prunus.timing.latency import latency, speedup
    from prunus.zoo.data import load
    from prunus.zoo.models import create
    from prunus.zoo.weights import load_weights, read_tensors

    data = load(f"folder:{folder}", size=SIDE, labels="boxes", mean=(0.0,), std=(1.0,), holdout="test:0.5")
    model = create("yolo:yolov8n.yaml", num_classes=10)
    load_weights(model, weights)
    example, plan = data.example(), Plan.load(run / "plan.json")
    results = Results(out, f"YOLOv8n on scenes of MNIST digits, {SIDE} pixels: AP in per cent")

    def add(name: str, make: Any, **more: Any) -> None:
        if results.find({"network": name}) is not None:
            return
        network = make()
        got = prunus.evaluate(network.eval(), data.loader("test", 16), task="detection")
        timed = None
        if name != "unpruned":
            pair = {"before": model, "after": network}
            how: dict[str, Any] = {"engine": "onnxruntime", "batch_sizes": (1,), "threads": 1, "cpu_time": True}
            timed = speedup(*(timing.seconds for timing in latency(pair, example, rounds=30, **how)))
        row = {
            "network": name,
            "AP50-95": round(100 * got.quality, 2),
            "AP50": round(100 * got.details["AP50"], 2),
            "test_images": got.num_images,
            "macs": prunus.trace(network, example, "coupled").macs,
            "speedup": timed and [round(value, 3) for value in (timed.ratio, timed.low, timed.high)],
            **more,
        }
        results.add(row)
        print(row, flush=True)

    def mimicked() -> Any:
        train = data.loader("train", 16, augment=True, shuffle=True)
        return prunus.mimic(loaded(), model, train, data.loader("holdout", 16), steps, task="detection").model

    def retrained() -> Any:
        yolo = prunus.ultralytics.yolo(run)
        place = {"data": str(folder / "data.yaml"), "project": str(run.resolve()), "name": "train"}
        yolo.train(epochs=epochs, lr0=0.0005, warmup_epochs=0.0, val=False, **place, **TRAINER)
        trained = loaded()
        trained.load_state_dict(read_tensors(yolo.trainer.last), strict=False)
        return trained

    def torch_pruning() -> Any:
        import torch_pruning as tp  # type: ignore[import-not-found, unused-ignore]

        other = create("yolo:yolov8n.yaml", num_classes=10)
        load_weights(other, weights)
        without_chunks(other)
        with torch.no_grad():
            same = (other(example)[0] - model(example)[0]).abs().max() < 1e-3
        assert same, "the blocks compute something else"
        share, goal, nearest = 0.06, prunus.trace(loaded(), example, "coupled").macs, None
        while share < 0.6:  # the network whose MACs are nearest to those of the repaired one
            share += 0.02
            tried = copy.deepcopy(other)
            for parameter in tried.parameters():
                parameter.requires_grad_(True)
            tp.pruner.MetaPruner(
                tried,
                example,
                importance=tp.importance.MagnitudeImportance(p=2),
                pruning_ratio=share,
                ignored_layers=[tried.model[-1]],  # type: ignore[index, union-attr]
            ).step()
            macs = tp.utils.count_ops_and_params(tried, example)[0]
            if nearest is None or abs(macs - goal) < abs(nearest[0] - goal):
                nearest = macs, tried
            if macs < goal:
                break
        assert nearest is not None
        return nearest[1]

    def loaded() -> Any:
        return prunus.load(run, create("yolo:yolov8n.yaml", num_classes=10))

    add("unpruned", lambda: model)
    add("before repair", lambda: prunus.prune(prunus.trace(model, example, "coupled"), plan))
    add("repaired", loaded)
    add("torch-pruning, magnitude", torch_pruning)
    add("mimicked", mimicked, steps=steps)
    add("retrained", retrained, epochs=epochs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("scenes", "train", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="folder of the training, or JSON file for the rows of `measure`")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--run", type=Path, help="folder of the pruned YOLO")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--steps", type=int, default=150, help="of mimicking")
    args = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    if args.step == "scenes":
        print(write_scenes(args.folder))
        return
    from tests.networks import from_torchvision

    from_torchvision.library()  # ultralytics imports torchvision, whose wheel may not fit
    if args.step == "train":
        train(args.folder, (args.out or Path("runs/detection")).resolve(), args.epochs)
    else:
        measure(args.folder, args.run, args.weights, args.out, args.steps, args.epochs)


if __name__ == "__main__":
    main()
