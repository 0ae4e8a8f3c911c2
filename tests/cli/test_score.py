"""`prunus score` on the digits that scikit-learn carries."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import prunus as sc
from prunus.cli import build
from prunus.cli.inputs import open_model
from prunus.score.metrics import METRICS
from prunus.score.score import score
from prunus.score.scores import load_scores
from prunus.zoo.data import load
from tests.processes import torchrun

runner = CliRunner()
BASE = ["score", "lenet5", "--data", "digits", "--num-images", "100", "--size", "32", "--device", "cpu"]


def run(*more: str) -> tuple[int, str, str]:
    result = runner.invoke(build(), [*BASE, *more])
    return result.exit_code, result.stdout, result.stderr


def test_a_table_and_files(tmp_path: Path) -> None:
    code, out, complaints = run("--metric", "gsd,l1", "--metric", "l2", "--out", str(tmp_path / "s"), "--show", "2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "4 units scored by gsd, 100 images; higher means keep"
    assert lines[1].split() == ["unit", "kind", "width", "weakest", "strongest"]
    kept = load_scores(tmp_path / "s")
    assert list(kept) == ["gsd", "l1", "l2"]
    row = next(line for line in lines if line.startswith("conv1:out")).split()
    order = kept["gsd"].order("conv1:out")
    assert [int(cell.split(":")[0]) for cell in row[3:]] == [order[0], order[1], order[-1], order[-2]]
    assert "rank correlation (Spearman, mean over units)" in out
    assert "the network is untrained" in complaints


def test_the_same_as_the_library(tmp_path: Path) -> None:
    code, _, _ = run("--metric", "gsd", "--option", "ridge=0.5", "--out", str(tmp_path))
    assert code == 0
    images = load("digits", size=32)
    graph = sc.trace(open_model("lenet5", images), torch.zeros(1, *images.shape))
    wanted = score(graph, images.loader("train", 128, limit=100, seed=0), "gsd", ridge=0.5)
    found = load_scores(tmp_path)["gsd"]
    assert found.options == {"ridge": 0.5} and found.num_images == 100
    assert list(found.values) == list(graph.units)
    for unit, values in wanted.values.items():
        np.testing.assert_allclose(found.values[unit], values, rtol=1e-6)


def test_all_metrics_as_json() -> None:
    code, out, _ = run("--metric", "all", "--json")
    assert code == 0
    found = json.loads(out)
    assert set(found["scores"]) == set(METRICS)
    assert found["num_images"] == 100
    assert found["rank_correlation"]["gsd"]["gsd"] == pytest.approx(1)
    assert found["rank_correlation"]["gsd"]["l1"] == found["rank_correlation"]["l1"]["gsd"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--metric", "gds"], "there is no metric called 'gds'"),
        (["--option", "ridge"], "an option of a metric must be NAME=VALUE"),
        (["--option", "rho=1"], "gsd_reader has no option 'rho'"),
        (["--part", "all"], "part must be one of train, holdout, test; got 'all'"),
        (["--tap", "writer"], "tap must be one of reader, before_activation"),
    ],
)
def test_mistakes_are_one_line_and_exit_1(more: list[str], words: str) -> None:
    code, out, complaints = run(*more)
    assert code == 1
    assert words in " ".join(complaints.split())
    assert out == ""


def test_torchrun_gives_the_same(tmp_path: Path) -> None:
    code, _, _ = run("--out", str(tmp_path / "one"))
    assert code == 0
    torchrun("prunus", *BASE, "--out", tmp_path / "two")
    one, two = (load_scores(tmp_path / name)["gsd_reader"] for name in ("one", "two"))
    assert two.num_images == 100
    for unit, values in one.values.items():
        np.testing.assert_allclose(two.values[unit], values, rtol=1e-5)
