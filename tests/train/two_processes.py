"""Run by torchrun in two processes: what each of them ends with, as a JSON line in FOLDER/RANK.json.

torchrun --nproc-per-node 2 -m tests.train.two_processes FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from prunus.tasks.evaluate import evaluate
from prunus.train.checkpoint import digest
from prunus.train.fit import fit
from prunus.train.settings import Preset
from prunus.util.processes import leave, rank_and_world
from tests.proof import accuracy_bounds
from tests.train.toys import batches, network

PRESET = Preset("two", epochs=3, lr=0.05, batch_size=8)


def main(folder: Path) -> None:
    """Train on a list of batches (an odd number) and on a shuffled DataLoader, with batch norm and a held-out list."""
    rank, world = rank_and_world("cpu")
    held = batches(3, seed=3)
    images, labels = (torch.cat(parts) for parts in zip(*batches(6), strict=True))
    shuffled = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    record: dict[str, object] = {"rank": rank, "world": world}
    for name, loader in (("list", batches(5)), ("loader", shuffled)):
        first = fit(network(), loader, held, preset=PRESET, epochs=1, device="cpu", checkpoint_dir=folder / name)
        assert first.history[0].holdout is not None
        record[name] = digest(first.model)
        record[f"{name} quality"] = asdict(first.history[0].holdout)
        record[f"{name} whole"] = asdict(evaluate(first.model, held))
        record[f"{name} bounds"] = accuracy_bounds(first.model, held)
    (folder / f"{rank}.json").write_text(json.dumps(record))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
