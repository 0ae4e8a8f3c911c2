"""How to retrain after a repair: one row for each choice of settings, from the same repaired network.

    python benchmarks/schedule.py --weights resnet20-cifar10.safetensors --data DIR --out docs/results/schedule.json \
        --network resnet20 --epochs 3 --num-images 10000 --seed 0 --start runs/start [--row "lr=0.01 views=1" ...]

Half of the MACs are removed and the network is repaired without training; then it is retrained with the unpruned
network as teacher. A row is a list of settings of `fit`; `teacher=no` leaves the teacher out. An epoch is a share of
the training images, another one each time. All figures are held-out accuracy: that of one half of CIFAR-10's test
images. The other half is not read, so that it is fresh for what is chosen here. Each row is written when it is done; a
second call goes on with the rows that are missing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.train.rate_test import FirstBatches
from prunus.zoo.data import ImageData

BATCH = 128
ROWS = (
    "lr=0.05",
    "lr=0.02",
    "lr=0.01",
    "lr=0.005",
    "lr=0.002",
    "lr=0.01 teacher=no",
    "lr=0.01 warmup=0.3",
    "lr=0.01 batch_norm=frozen",
    "lr=0.01 temperature=4 distill_weight=0.9",
    "lr=0.01 temperature=2 distill_weight=0.9",
    "lr=0.01 mixup=0.2",
    "lr=0.01 ema=0.99",
    "lr=0.01 views=1",
    "lr=0.01 distill_features=1",
)


def settings_of(row: str) -> dict[str, Any]:
    """The settings that a row's text names; numbers as numbers."""
    return {name: _value(text) for name, _, text in (word.partition("=") for word in row.split())}


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def repaired(model: nn.Module, data: ImageData, folder: Path, target: float, seed: int) -> sc.Compressed:
    """The network to start from, in `folder` once it is made."""
    return sc.compress(
        model,
        data.loader("train", BATCH, augment=True, shuffle=True, seed=seed),
        data.loader("holdout", 250),
        score_on=data.loader("train", 250),
        target=target,
        epochs=0,
        seed=seed,
        folder=folder,
    )


def retrained(start: nn.Module, teacher: nn.Module, data: ImageData, args: Any, row: str) -> dict[str, Any]:
    """Held-out per cent after each epoch of a row, and its seconds."""
    settings = settings_of(row)
    master = None if settings.pop("teacher", "yes") == "no" else teacher
    train = data.loader("train", BATCH, augment=True, shuffle=True, seed=args.seed)
    fitted = sc.fit(
        start,
        FirstBatches(train, args.num_images // BATCH),
        data.loader("holdout", 250),
        teacher=master,
        seed=args.seed,
        **{"preset": "cosine", "epochs": args.epochs, **settings},
    )
    return {
        "holdout": [round(100 * epoch.holdout.quality, 2) for epoch in fitted.history if epoch.holdout is not None],
        "seconds": [round(epoch.seconds, 1) for epoch in fitted.history],
    }


def main() -> None:
    """Run the rows that are missing."""
    parser = arguments(__doc__)
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-images", type=int, default=10_000, help="images in an epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--row", action="append", help="settings of a row; several --row are several rows")
    parser.add_argument(
        "--start", type=Path, required=True, help="folder of the repaired network, made if it is missing"
    )
    args = parser.parse_args()
    model, data = opened(args.network, args)
    start = repaired(model, data, args.start, args.target, args.seed)
    asked = {name: getattr(args, name) for name in ("network", "target", "epochs", "num_images", "seed")}
    before = {part: round(100 * start.summary[part]["holdout"]["top1"], 2) for part in ("before", "after")}
    table = table_so_far(args.out, {"asked": asked, "holdout": before, "rows": {}})
    if table["asked"] != asked:
        sys.exit(f"{args.out} is of another run: {table['asked']}, and this one is {asked}; give another --out")
    for row in args.row or ROWS:
        if row not in table["rows"]:
            table["rows"][row] = retrained(start.model, model, data, args, row)
            write(table, args.out)
            print(row, table["rows"][row], flush=True)


if __name__ == "__main__":
    main()
