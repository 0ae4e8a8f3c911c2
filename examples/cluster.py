"""Several processes: on one machine, or on the nodes of a cluster.

    torchrun --nproc-per-node 2 examples/cluster.py             # two processes on this machine
    torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint NODE:29500 examples/cluster.py

The script is the same as for one process. Every process builds the same network and the same loaders; prunus gives
each its share of the batches, averages the gradients, and divides the units of the sensitivity analysis among them. One
process writes the folder. --small: fewer epochs, for the tests.
"""

import os
import sys

import torch

import prunus
from prunus.zoo import data, models

SMALL = "--small" in sys.argv
RANK = int(os.environ.get("RANK", 0))

torch.manual_seed(0)  # the same weights in every process
digits = data.load("digits")
train, holdout, test = (digits.loader(part, 64, shuffle=part == "train") for part in ("train", "holdout", "test"))
model = models.create("resnet8", num_classes=10, in_channels=1)
model = prunus.fit(model, train, holdout, epochs=2 if SMALL else 10, checkpoint_dir="cluster/base").model

result = prunus.compress(
    model, train, holdout, test=test, target=0.5, rounds=1, epochs=1 if SMALL else 3, folder="cluster/run"
)
if RANK == 0:
    print(result)
    print("results in", result.folder)
