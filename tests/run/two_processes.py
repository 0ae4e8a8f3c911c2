"""Run by torchrun in two processes: one round with each kind of scores, an epoch of training with each kind of loader,
and what each process ends with in FOLDER.

torchrun --nproc-per-node 2 -m tests.run.two_processes FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_model

from prunus.run.compress import compress
from prunus.tasks.evaluate import evaluate
from prunus.train.checkpoint import digest
from prunus.train.fit import fit
from prunus.util.processes import leave, rank_and_world
from tests.proof import accuracy_bounds
from tests.run.toys import HOLDOUT, TRAIN, Small
from tests.train import toys

WEIGHTS = "trained.safetensors"
CASES = {
    "exact": {"exact": True},
    "race": {"measure": "loss"},
    "solve": {"repair": "solve", "num_repair_images": 192, "trials": "cut"},  # on all images, half from each process
    "spare": {"metric": "l2"},
}
TABLE = "table.json"  # of this machine, so that the first process times the networks


def prune(weights: Path, folder: Path | None, rank: int, world: int, **words: object) -> tuple[str | None, str]:
    """One round without retraining; each process scores its own share of the images."""
    share = TRAIN[rank::world]
    options = {"target": 0.4, "rounds": 1, "epochs": 0, "seed": 1, "repair": "none", "timing": False, **words}
    model = Small().eval()
    load_model(model, weights)
    result = compress(model, TRAIN, HOLDOUT, score_on=share, folder=folder, **options)  # type: ignore[arg-type]
    return digest(result.model), result.plan.to_json()


def main(folder: Path) -> None:
    """All cases; the last without a folder of its own."""
    rank, world = rank_and_world("cpu")
    found = {
        name: prune(folder / WEIGHTS, folder / name if name != "spare" else None, rank, world, **words)
        for name, words in CASES.items()
    }
    goal = {"target": None, "speedup": 1.3, "latency_table": str(folder / TABLE), "repair": "solve"}
    found["speed"] = prune(folder / WEIGHTS, folder / "speed", rank, world, **goal)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    (folder / f"fit-{rank}.json").write_text(json.dumps({name: train(folder, name) for name in ("list", "loader")}))
    leave()


def train(folder: Path, kind: str) -> dict[str, object]:
    """An epoch on a list of batches (an odd number) or a shuffled DataLoader, with batch norm and a held-out list."""
    held, data = toys.batches(3, seed=3), toys.batches(5)
    loader = data if kind == "list" else toys.shuffled()
    place = folder / f"fit-{kind}"
    fitted = fit(toys.network(), loader, held, epochs=1, lr=0.05, device="cpu", checkpoint_dir=place)
    whole, quality = evaluate(fitted.model, held), fitted.history[0].holdout
    assert quality is not None
    bounds = accuracy_bounds(fitted.model, held)
    return {"digest": digest(fitted.model), "quality": asdict(quality), "loss": whole.loss, "bounds": bounds}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
