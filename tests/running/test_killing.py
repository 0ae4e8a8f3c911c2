"""Killed with -9 again and again, a run ends bit for bit where an unbroken one ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_killed_fourteen_times_and_still_the_same_bits(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.running.killing", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["killed after"]) == 14
    assert report["rounds"] == sorted(report["rounds"])  # no finished round was lost
    assert report["rounds"][0] < 3 and report["rounds"][-1] >= 1, report  # killed all over the run
    wanted = {"model.safetensors", "plan.json", "round-03/model.safetensors", "round-01/pictures.safetensors"}
    assert wanted <= report["whole"].keys()
    assert report["whole"] == report["broken"] == report["again"]
