"""Whose batches are whose, worked out by hand, and two real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from secateur.training.data_shares import EveryNth

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7])
@pytest.mark.parametrize("world", [2, 3])
def test_every_nth_deals_out_each_batch_once(count: int, world: int) -> None:
    loader = [(number, number) for number in range(count)]
    shares = [EveryNth(loader, rank, world) for rank in range(world)]
    assert sorted(pair for share in shares for pair in share) == loader
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]
    if count == 5 and world == 2:
        assert [[pair[0] for pair in share] for share in shares] == [[0, 2, 4], [1, 3]]


def test_two_processes_end_with_one_network(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*launch, "-m", "tests.training.two", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["rank"], second["rank"], first["world"]) == (0, 1, 2)
    for name in ("list", "loader"):
        assert first[name] == second[name]  # weights and batch-norm statistics, bit for bit
        together, alone = first[f"{name} accuracy"], first[f"{name} whole"]
        assert together == second[f"{name} accuracy"] and together["images"] == 24
        assert (together["top1"], together["loss"]) == pytest.approx((alone["top1"], alone["loss"]), rel=1e-6)
    lines = (tmp_path / "list" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1  # written by one process, once
