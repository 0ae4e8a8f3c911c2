"""Methods that change the training, on a small network: network slimming, SSS and soft filter pruning.

    python benchmarks/sparse_training.py --out docs/results/sparse-training.json

A resnet8 is trained on scikit-learn's digits for 20 epochs, plainly or by a method, with three seeds. Then a share of
the inner channels of its blocks is removed: by SFP's own rule (the same share of every layer by L2 norm, which its
training has set to zero), and for the others by one ranking of all batch-norm scales, to the same MACs. Test accuracy
before, as cut, after the repair `solve`, and after five epochs from the cut and from the repaired network. No decision
reads the test images. Rows are written one by one; a second call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import table_so_far, write
from prunus.decide.splits import global_ranking
from prunus.decide.widths import Cutter
from prunus.zoo.data import ImageData, load
from prunus.zoo.models import create

SEEDS, SHARES = (0, 1, 2), (0.3, 0.5, 0.7)
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "slimming, 1e-4": {"sparsity": 1e-4},
    "slimming, 1e-2": {"sparsity": 1e-2},
    "SSS, 1e-4": {"sparsity": 1e-4, "sparsity_by": "proximal"},
    "SSS, 1e-2": {"sparsity": 1e-2, "sparsity_by": "proximal"},
    "SFP": {"soft_prune": None},  # the share that is removed
}


def trained(data: ImageData, seed: int, **settings: Any) -> nn.Module:
    """A network trained from scratch."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = create("resnet8", num_classes=10, in_channels=1)
    loader = data.loader("train", 128, shuffle=True, seed=seed)
    return sc.fit(model, loader, preset="cosine", epochs=20, seed=seed, progress=False, **settings).model.eval()


def cut_plan(graph: sc.ChannelGraph, share: float, soft: bool) -> sc.Plan:
    """The method's own choice among the inner channels of the blocks, at the MACs of one share of every layer."""
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    alike = sc.uniform(graph, sc.score(graph, None, "l2"), share, units=inner)
    if soft:
        return alike
    return global_ranking(Cutter(graph, sc.score(graph, None, "bn_scale")), inner, graph.cost(alike).macs)


def row(data: ImageData, seed: int, share: float, model: nn.Module, soft: bool) -> dict[str, float]:
    """Test accuracy in per cent at each stage, and the MACs removed."""
    graph = sc.trace(model, torch.zeros(1, *data.shape))
    plan = cut_plan(graph, share, soft)
    images = data.loader("train", 128, limit=500)
    networks = {"before": model, "cut": sc.prune(graph, plan), "repaired": sc.repair(graph, plan, images)}
    for start in ("cut", "repaired"):
        loader = data.loader("train", 128, shuffle=True, seed=seed)
        more: dict[str, Any] = {"preset": "cosine", "lr": 0.01, "epochs": 5, "first_epoch": 20, "seed": seed}
        networks[f"{start}, retrained"] = sc.fit(networks[start], loader, progress=False, **more).model
    test = data.loader("test", 256)
    found = {name: round(100 * sc.evaluate(network, test).quality, 2) for name, network in networks.items()}
    return {**found, "macs_removed": round(1 - graph.cost(plan).macs / graph.macs, 4)}


def means(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, list[float]]]:
    """Row without its seed -> mean and standard deviation of each figure."""
    groups: dict[str, list[dict[str, float]]] = {}
    for title, figures in rows.items():
        groups.setdefault(title.rpartition(", seed ")[0], []).append(figures)
    return {
        title: {
            key: [round(statistics.mean(f[key] for f in each), 4), round(statistics.stdev(f[key] for f in each), 4)]
            for key in each[0]
        }
        for title, each in groups.items()
        if len(each) > 1
    }


def main() -> None:
    """Fill in the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; what it holds is not measured again")
    args = parser.parse_args()
    data = load("digits")
    table = table_so_far(args.out, {"rows": {}})
    for seed, (method, settings) in itertools.product(SEEDS, METHODS.items()):
        titles = {share: f"{method}, {share:.0%}, seed {seed}" for share in SHARES}
        missing = {share: title for share, title in titles.items() if title not in table["rows"]}
        soft = "soft_prune" in settings
        model = trained(data, seed, **settings) if missing and not soft else None
        for share, title in missing.items():
            table["rows"][title] = row(data, seed, share, model or trained(data, seed, soft_prune=share), soft)
            table["means"] = means(table["rows"])
            write(table, args.out)
            print(title, table["rows"][title], flush=True)


if __name__ == "__main__":
    main()
