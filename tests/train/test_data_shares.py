"""Whose batches are whose, worked out by hand, and two real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prunus.train.setup import EveryNth
from tests.processes import torchrun


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
    torchrun("tests.train.two_processes", tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["rank"], second["rank"], first["world"]) == (0, 1, 2)
    for name in ("list", "loader"):
        assert first[name] == second[name]  # weights and batch-norm statistics, bit for bit
        together, alone = first[f"{name} accuracy"], first[f"{name} whole"]
        assert together == second[f"{name} accuracy"] and together["num_images"] == 24
        low, high = first[f"{name} bounds"]  # with room for rounding: each process evaluates its share
        assert low <= together["top1"] <= high and together["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    lines = (tmp_path / "list" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1  # written by one process, once
