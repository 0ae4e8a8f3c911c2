"""Run as a program: train, be killed with -9 at random moments, start again until done, and print a JSON report.

    python -m tests.train.kill_and_resume FOLDER

Torch is imported once; each attempt is a fork of this still idle process, so that a dozen of them take seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from prunus.train.checkpoint import NAME, digest
from prunus.train.fit import fit
from prunus.train.settings import Preset
from prunus.util.processes import accelerating
from tests.train.toys import batches, network

KILLS = 12
SETTINGS = Preset("kill", epochs=30, lr=0.05, batch_size=8, schedule="cosine", warmup=1)
Tell = Callable[[object], object]


def main(folder: Path) -> None:
    """One unbroken run, then one with KILLS kills, then a call after the end."""
    with accelerating("cpu", "no"):  # this and the next line import what each fork would import for itself
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    sys.modules["prunus.train.fit"].SECONDS_BETWEEN_REPORTS = 0.0  # type: ignore[attr-defined]
    _in_a_fork(lambda tell: train(folder / "whole", tell))
    moments = random.Random(7)
    gained: list[int] = []
    while len(gained) < KILLS:
        before = epochs_done(folder / "broken")
        # some steps into the run (8 steps an epoch), and then any moment of the next few milliseconds:
        # within a step, an evaluation, a write
        _in_a_fork(lambda tell: train(folder / "broken", tell), moments.randint(1, 16), moments.uniform(0, 0.006))
        gained.append(epochs_done(folder / "broken") - before)
    _in_a_fork(lambda tell: train(folder / "broken", tell))
    _in_a_fork(lambda tell: train(folder / "broken", tell))  # all is done already: must give the same again
    left = sorted(path.name for path in (folder / "broken").iterdir())
    whole, broken = ((folder / name / "result").read_text() for name in ("whole", "broken"))
    print(json.dumps({"whole": whole, "broken": broken, "epochs gained": gained, "files": left}))


def train(folder: Path, tell: Tell) -> None:
    """A run with dropout, batch norm, distillation by kept answers, averaged weights and held-out data."""
    data, held = batches(8), batches(2, seed=3)
    options = {"preset": SETTINGS, "teacher": network(), "checkpoint_dir": folder, "seed": 5, "progress": tell}
    fitted = fit(network(dropout=0.3), data, held, views=3, ema=0.9, **options)  # type: ignore[arg-type]
    losses = [(epoch.loss, epoch.holdout.loss if epoch.holdout else None) for epoch in fitted.history]
    (folder / "result").write_text(f"{digest(fitted.model)} {losses}")


def epochs_done(folder: Path) -> int:
    """By the metrics that a checkpoint carries."""
    from safetensors import safe_open

    if not (folder / NAME).exists():
        return 0
    with safe_open(folder / NAME, framework="pt") as file:
        return len(json.loads(file.metadata()["state"])["history"])


def _in_a_fork(work: Callable[[Tell], None], kill_after_steps: int | None = None, and_seconds: float = 0.0) -> None:
    """Run `work` in a child, which says through a pipe when it has done a step; kill it after some, if asked."""
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ear)
            work(lambda _: os.write(mouth, b"."))
            status = 0
        finally:
            os._exit(status)
    os.close(mouth)
    if kill_after_steps is None:
        while os.read(ear, 4096):  # until the child closes it
            pass
    else:
        heard = 0
        while heard < kill_after_steps and (dots := os.read(ear, 1)):
            heard += len(dots)
        time.sleep(and_seconds)
        os.kill(child, signal.SIGKILL)
    os.close(ear)
    _, status = os.waitpid(child, 0)
    expected = 0 if kill_after_steps is None else signal.SIGKILL
    if status != expected:
        raise RuntimeError(f"the child ended with {status} instead of {expected}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
