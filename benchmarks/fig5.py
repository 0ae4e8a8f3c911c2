"""The paper's Fig. 5 with short epochs: `prunus study sensitivity` where an epoch is --num-images training images.

    python benchmarks/fig5.py --weights resnet56-cifar10.safetensors --data DIR --out runs/fig5-resnet56 \
        --network resnet56 --num-images 5120 --num-held-out 1000

G-SD, from 31% to 56% of the MACs removed in five iterations, a third of the units in each, one epoch after each cut
(cosine from 0.01). Images of one half of the test images decide, and the other half is reported. --out is the folder of
the study; the same call goes on where it stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened
from benchmarks.schedule import BATCH
from prunus.train.rate_test import FirstBatches

SCORED = 5000  # training images that score


def main() -> None:
    """Run the study and print its rows."""
    parser = arguments(__doc__)  # --out is a folder here
    parser.add_argument("--network", default="resnet56")
    parser.add_argument("--num-images", type=int, default=10_240, help="images in an epoch, others each time")
    parser.add_argument("--num-held-out", type=int, help="held-out images that decide; all 5,000 by default")
    parser.add_argument("--precision", default="bf16", help="of the training: bf16 is faster on some processors")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, data = opened(args.network, args)
    whole = data.loader("train", BATCH, augment=True, shuffle=True, seed=args.seed)
    rows = sc.studies.sensitivity(
        model,
        FirstBatches(whole, args.num_images // BATCH),
        data.loader("holdout", 250, limit=args.num_held_out),
        args.out,
        test=data.loader("test", 250),
        score_on=data.loader("train", 250),
        metric="gsd",
        num_images=SCORED,
        epochs=1,
        lr=0.01,
        mixed_precision=args.precision,
        seed=args.seed,
    )
    for row in rows:
        print({key: row[key] for key in row if not isinstance(row[key], dict | list)}, flush=True)


if __name__ == "__main__":
    main()
