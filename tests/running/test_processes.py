"""Two processes under torchrun: a round plans as one process does, and all of `secateur prune` ends as it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_model

import secateur as sc
from secateur.channels.plan import Plan
from secateur.training.fit import fit
from secateur.zoo.data import load
from secateur.zoo.models import create
from tests.proof import counted_macs
from tests.running.toys import trained
from tests.running.two import CASES, WEIGHTS, prune

ROOT = Path(__file__).parents[2]


def launch(*words: object) -> None:
    """`torchrun --nproc-per-node 2 -m WORDS`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, words)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_two_processes_plan_as_one_does(tmp_path: Path) -> None:
    save_model(trained(), str(tmp_path / WEIGHTS))
    launch("tests.running.two", tmp_path)
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


def test_the_whole_command_in_two_processes(tmp_path: Path) -> None:
    """LeNet-5 on the digits: half of its MACs gone in two rounds, and at most a point of accuracy on test images."""
    torch.manual_seed(0)
    images = load("digits", size=32)
    loader = images.loader("train", 32, shuffle=True, seed=0)
    fitted = fit(create("lenet5"), loader, images.loader("test", 256), preset="cosine", epochs=4, lr=0.05)
    save_model(fitted.model, str(tmp_path / WEIGHTS))
    goal = ["--target", "0.5", "--rounds", "2", "--epochs", "3", "--lr", "0.02", "--no-augment", "--device", "cpu"]
    out = tmp_path / "run"
    launch("secateur", "prune", "lenet5", "--weights", tmp_path / WEIGHTS, "--data", "digits", *goal, "--out", out)
    summary = json.loads((out / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    assert before["test"]["images"] == after["test"]["images"] == images.count("test")
    assert before["test"]["top1"] > 0.9 and after["test"]["top1"] >= before["test"]["top1"] - 0.01
    example = torch.zeros(1, 1, 32, 32)
    small = sc.load(out, create("lenet5")).eval()
    assert counted_macs(small, example) == after["macs"] <= 0.505 * counted_macs(create("lenet5").eval(), example)
    assert sc.evaluate(small, images.loader("test", 256)).top1 == after["test"]["top1"]
