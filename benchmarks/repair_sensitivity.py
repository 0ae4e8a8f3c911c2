"""Does a unit's accuracy after a repair predict its accuracy after retraining better than that of the bare cut?

    python benchmarks/repair_sensitivity.py --weights resnet20-cifar10.safetensors --data DIR \
        --out docs/results/repair-sensitivity.json

ResNet-20 on CIFAR-10. Each unit alone loses n_l channels (Eqn. 3, alpha 6, by reader_energy): all save the same.
As cut, after batch-norm correction and after re-solving its readers (200 images without labels): on one half of the
test images. Then the cut network is retrained on 6,400 training images, the same ones in the same order for every unit
(rate 0.01, cosine to 0), and judged on the other half. Spearman's rank correlation over the units says which of the
three predicts that best. Written unit by unit; a second call goes on where the first stopped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from scipy.stats import spearmanr
from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.zoo.data import ImageData

ALPHA, REPAIR_IMAGES, RETRAIN_IMAGES = 6.0, 200, 6_400
WAYS = ("none", "bn", "solve")


def judged(graph: sc.ChannelGraph, scores: sc.Scores, data: ImageData) -> dict[str, dict[str, Any]]:
    """unit -> channels lost, accuracy (per cent) and loss after each way of repairing it."""
    rows: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        images = data.loader("train", 100, limit=REPAIR_IMAGES)
        mend = None if way == "none" else sc.repair_each(graph, images, how=way)
        found = sc.sensitivity(graph, scores, data.loader("holdout", 250), alpha=ALPHA, exact=True, repair=mend)
        for name, row in found.tried.items():
            rows.setdefault(name, {"channels": row.channels, "width": row.width, "saved": row.saved})
            rows[name][way] = {"accuracy": round(100 * (row.accuracy or 0), 2), "loss": round(row.loss or 0, 4)}
    return rows


def retrained(graph: sc.ChannelGraph, scores: sc.Scores, unit: str, lost: int, data: ImageData) -> dict[str, float]:
    """The unit's weakest channels cut, a short retraining, accuracy and loss on images that judged nothing before."""
    weakest = scores.values[unit].argsort()[:lost].tolist()
    kept = [i for i in range(graph.units[unit].width) if i not in weakest]
    cut: nn.Module = sc.prune(graph, sc.Plan.of(graph, {unit: kept}))
    preset = sc.Preset("short", epochs=1, lr=0.01, batch_size=128, schedule="cosine")
    train = data.loader("train", 128, augment=True, shuffle=True, limit=RETRAIN_IMAGES)
    after = sc.evaluate(sc.fit(cut, train, preset=preset).model, data.loader("test", 250))
    return {"accuracy": round(100 * after.quality, 2), "loss": round(after.loss, 4)}


def correlations(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Spearman's rho with the retrained figure, for accuracy and for loss, of the units that have been retrained."""
    done = [row for row in rows.values() if "retrained" in row]
    found: dict[str, dict[str, float]] = {}
    for way in WAYS:
        for what in ("accuracy", "loss"):
            for after in ("accuracy", "loss"):
                pairs = [[row[way][what] for row in done], [row["retrained"][after] for row in done]]
                sign = 1 if what == after else -1
                found.setdefault(way, {})[f"{what} -> {after}"] = round(sign * float(spearmanr(*pairs).statistic), 3)
    return found


def main() -> None:
    """Judge all units, retrain those that are missing, correlate."""
    args = arguments(__doc__).parse_args()
    model, data = opened("resnet20", args)
    graph = sc.trace(model, torch.zeros(1, *data.shape))
    scores = sc.score(graph, data.loader("train", 250, limit=5000), "reader_energy")
    table = table_so_far(args.out, {})
    if not table:
        table = {"network": "resnet20 on cifar10", "alpha": ALPHA, "units": judged(graph, scores, data)}
        write(table, args.out)
    for name, row in table["units"].items():
        if "retrained" not in row:
            row["retrained"] = retrained(graph, scores, name, row["channels"], data)
            print(name, row, flush=True)
        if sum("retrained" in other for other in table["units"].values()) > 2:
            table["spearman"] = correlations(table["units"])
        write(table, args.out)
    print(json.dumps(table["spearman"], indent=2))


if __name__ == "__main__":
    main()
