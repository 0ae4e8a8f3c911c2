"""Killed with -9 again and again, a run ends bit for bit where an unbroken one ends."""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes import python


def test_killed_fourteen_times_and_still_the_same_bits(tmp_path: Path) -> None:
    report = json.loads(python("-W", "error", "-m", "tests.running.kill_and_resume", tmp_path))
    assert len(report["killed after"]) == 14
    assert report["rounds"] == sorted(report["rounds"])  # no finished round was lost
    assert report["rounds"][0] < 3 and report["rounds"][-1] >= 1, report  # killed all over the run
    wanted = {"model.safetensors", "plan.json", "round-03/model.safetensors", "round-01/pictures.safetensors"}
    assert wanted <= report["whole"].keys()
    assert report["whole"] == report["broken"] == report["again"]
