"""Two real processes (gloo) that read half of the images each give what one gives that reads them all."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import prunus as pr
from prunus.scoring.metrics import METRICS as REGISTRY
from prunus.scoring.score import score
from tests import nets
from tests.processes import ENVIRONMENT, LONGEST
from tests.scoring.toys import batches, graph_of
from tests.tasks.nets import UNet, squares

METRICS = ["gsd", "ttest", "reader_energy", "fisher", "taylor", "l1"]

WORKER = """
import json, sys
import torch
from torch import distributed as dist
import prunus as pr
from prunus.errors import PrunusError
from prunus.scoring.score import score
from tests import nets
from tests.scoring.toys import batches, settled
from tests.tasks.nets import UNet, squares

rank, port, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
graph = pr.trace(settled(nets.Residual()), torch.zeros(1, 3, 8, 8, dtype=torch.float64))
mine = batches(32, 4)[rank::2]
broken = [(x.clone(), y) for x, y in mine]
if rank == 1:
    broken[1][0][0] = float("nan")


def error(loader, metric):
    try:
        score(graph, loader, metric)
    except PrunusError as caught:
        return str(caught)


found = score(graph, mine, METRICS)
torch.manual_seed(0)
dense = pr.trace(UNet().eval(), torch.zeros(1, 1, 12, 12))
pixels = squares(64)[rank::2]
if rank == 0:
    for _, labels in pixels:
        labels.clamp_(max=1)  # the other process sees a class more
answer = {
    "values": {m: {u: v.tolist() for u, v in s.values.items()} for m, s in found.items()},
    "pixels": {u: v.tolist() for u, v in score(dense, pixels, "gsd", task="segmentation").values.items()},
    "num_images": found["gsd"].num_images,
    "sample": score(graph, mine, num_images=20, seed=0).num_images,
    "all": sorted(score(graph, mine, "all")),
    "unequal": error(mine[: 4 - rank], "gsd"),
    "one fails": error(broken, "gsd"),
    "maps": error(mine, "mmd"),
}
open(f"{out}/{rank}.json", "w").write(json.dumps(answer))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes has to say."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = folder / "worker.py"
    script.write_text(WORKER.replace("METRICS", repr(METRICS)))
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(port), str(folder)],
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    complaints = [worker.communicate(timeout=LONGEST)[1] for worker in workers]  # both end before one may fail
    assert [worker.returncode for worker in workers] == [0, 0], complaints
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_equal_one(answers: list[dict[str, Any]]) -> None:
    graph = graph_of(nets.Residual)
    alone = score(graph, batches(32, 4), METRICS)
    for found in answers:
        assert found["num_images"] == 32 and found["sample"] == 20
        for metric in METRICS:
            for unit, wanted in alone[metric].values.items():
                np.testing.assert_allclose(found["values"][metric][unit], wanted, rtol=1e-9)


def test_classes_of_pixels_that_one_process_alone_has_seen(answers: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    graph, pixels = pr.trace(UNet().eval(), torch.zeros(1, 1, 12, 12)), squares(64)
    for _, labels in pixels[::2]:
        labels.clamp_(max=1)
    for unit, wanted in score(graph, pixels, "gsd", task="segmentation").values.items():
        for found in answers:
            np.testing.assert_allclose(found["pixels"][unit], wanted, rtol=1e-9)


UNMERGED = {"di", "mmd", "hrank", "chip", "rebuilt", "thinet", "cp", "nisp", "dcp"}  # need all images in one process


def test_all_means_all_that_can_be_merged(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["all"] == answers[1]["all"] == sorted(set(REGISTRY) - UNMERGED)


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("unequal", "must read equal shares of the images, but they read 16, 12", "equal shares"),
        ("one fails", "1 of 2 processes failed", "batch 1: 1 of 4 images have values that are NaN or infinite"),
        ("maps", "mmd needs all images in one process", "mmd needs all images"),
    ],
)
def test_all_processes_stop_together(answers: list[dict[str, Any]], case: str, first: str, second: str) -> None:
    assert first in answers[0][case]
    assert second in answers[1][case]
