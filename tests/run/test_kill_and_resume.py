"""Killed with -9 again and again, a run ends bit for bit where an unbroken one ends."""

from __future__ import annotations

import json
from pathlib import Path

from tests.processes import python


def test_killed_fourteen_times_and_still_the_same_bits(tmp_path: Path) -> None:
    report = json.loads(python("-W", "error", "-m", "tests.run.kill_and_resume", tmp_path))
    assert len(report["killed after"]) == 14
    assert all(finished == sorted(finished) for finished in report["rounds"])  # no finished round was lost
    assert len({count for finished in report["rounds"] for count in finished}) >= 3, report  # killed all over the run
    wanted = {"model.safetensors", "plan.json", "round-03/model.safetensors", "round-01/pictures.safetensors"}
    assert wanted <= report["whole"].keys()
    assert report["whole"] == report["broken"] == report["again"]
