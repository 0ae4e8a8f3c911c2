"""Two processes under torchrun, from the same weights and data: one round's plan is one process's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from safetensors.torch import save_model

from secateur.channels.plan import Plan
from tests.running.toys import trained
from tests.running.two import CASES, WEIGHTS, prune

ROOT = Path(__file__).parents[2]


def test_two_processes_plan_as_one_does(tmp_path: Path) -> None:
    save_model(trained(), str(tmp_path / WEIGHTS))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "tests.running.two", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert both[0] == both[1] and set(both[0]) == set(CASES)
    for name, words in CASES.items():
        _, plan = prune(tmp_path / WEIGHTS, tmp_path / "one" / name, 0, 1, **words)
        assert both[0][name][1] == plan, name
        assert any(Plan.from_json(plan).removed().values())
    for name in ("exact", "race"):
        one, two = (
            json.loads((f / name / "round-01" / "sensitivity.json").read_text()) for f in (tmp_path / "one", tmp_path)
        )
        assert one["tried"].keys() == two["tried"].keys()
        for unit, row in one["tried"].items():
            assert (
                abs(row["value"] - two["tried"][unit]["value"]) < 1e-9 and row["images"] == two["tried"][unit]["images"]
            )
