"""Run as a program: prune, be killed with -9 at random moments, call again until done, and print a JSON report.

    python -m tests.run.kill_and_resume FOLDER training|blocks

Torch is imported once; each attempt is a fork of this still idle process, so that a dozen of them take seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import prunus.train.fit  # noqa: F401
from prunus.run.folder import RunFolder
from prunus.util.processes import accelerating
from tests.run.toys import TEST, contents, run, trained

# Name -> number of kills, and the run.
JOBS: dict[str, tuple[int, dict[str, Any]]] = {
    # Three rounds with repair, distillation by kept answers, averaged weights.
    "training": (8, {"target": 0.5, "rounds": 3, "num_images": 100, "repair": "bn", "views": 1, "ema": 0.5}),
    # So much that the residual branch must go, in the second of two rounds.
    "blocks": (4, {"target": 0.85, "rounds": 2, "split": "least_error", "blocks": True, "repair": "solve"}),
}
RESULTS = ("model.safetensors", "plan.json")
Tell = Callable[[], object]


def main(folder: Path, job: str) -> None:
    """One unbroken run, then one that is killed again and again, then a call after the end."""
    kills, settings = JOBS[job]
    prune = partial(_prune, settings)
    trained()
    with accelerating("cpu", "no"):  # this and the next line import what each fork would import for itself
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    sys.modules["prunus.train.fit"].SECONDS_BETWEEN_REPORTS = 0.0  # type: ignore[attr-defined]
    total = _in_a_fork(lambda tell: prune(folder / "whole", tell))
    assert total is not None
    moments, killed = random.Random(11), []
    rounds: list[list[int]] = [[]]  # finished rounds after each kill, for each run from its beginning
    while len(killed) < kills:
        # After some news (a step of training, a file about to be flushed, ...), at any moment of the next milliseconds;
        # first all over a run, later soon after the start, so that every attempt dies before it ends.
        news = moments.randint(1, max(3, total // (2 + len(killed) // 2)))
        heard = _in_a_fork(lambda tell: prune(folder / "broken", tell), news, moments.uniform(0, 0.006))
        if heard is None:  # it was quicker than the kill: begin again
            shutil.rmtree(folder / "broken")
            rounds.append([])
            continue
        killed.append(heard)
        rounds[-1].append(RunFolder(folder / "broken").finished_rounds())
    _in_a_fork(lambda tell: prune(folder / "broken", tell))
    results = {name: digests(folder / name) for name in ("whole", "broken")}
    _in_a_fork(lambda tell: prune(folder / "broken", tell))  # all is done already: must be the same again
    results["again"] = digests(folder / "broken")
    left = sorted(name for name in contents(folder / "broken") if Path(name).name.startswith("."))
    print(json.dumps({**results, "news": total, "killed after": killed, "rounds": rounds, "left over": left}))


def _prune(settings: dict[str, Any], folder: Path, tell: Tell) -> None:
    """A job's run, with dropout, retraining with a teacher, and test images."""
    flush = os.fsync

    def telling(handle: int) -> None:
        tell()
        flush(handle)

    os.fsync = telling
    run(
        folder,
        trained(dropout=0.3),
        epochs=2,
        distill=True,
        test=TEST,
        timing=False,
        progress=lambda *_: tell(),
        **settings,
    )


def digests(folder: Path) -> dict[str, str]:
    """Name -> digest of the results, and of every round's plan and weights."""
    wanted = (*RESULTS, "scores.json", "step-plan.json", "pictures.safetensors")
    files = {n: c for n, c in contents(folder).items() if Path(n).name in wanted}
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _in_a_fork(work: Callable[[Tell], None], kill_after: int | None = None, and_seconds: float = 0.0) -> int | None:
    """Run `work` in a child, which reports through a pipe; kill it after some news, if asked.

    Returns the number of news; None if the child ended before it was killed."""
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(ear)
            work(lambda: os.write(mouth, b"."))
            status = 0
        finally:
            os._exit(status)
    os.close(mouth)
    heard = 0
    while (kill_after is None or heard < kill_after) and (news := os.read(ear, 1)):
        heard += len(news)
    if kill_after is not None:
        time.sleep(and_seconds)
        os.kill(child, signal.SIGKILL)
    os.close(ear)
    _, status = os.waitpid(child, 0)
    if status not in ((0,) if kill_after is None else (0, signal.SIGKILL)):
        raise RuntimeError(f"the child ended with {status} after {heard} news")
    return None if status == 0 and kill_after is not None else heard


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
