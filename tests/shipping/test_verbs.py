"""secateur export and secateur bench from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

import secateur as sc
from secateur.cli import bench as bench_verb
from secateur.cli import export as export_verb
from secateur.zoo.models import create


def run(*words: object) -> Result:
    app = typer.Typer()
    app.command("export")(export_verb.command)
    app.command("bench")(bench_verb.command)
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pruned LeNet as `secateur prune` leaves it: first convolution 6 -> 3 channels."""
    graph = sc.trace(create("lenet5"), torch.zeros(1, 1, 32, 32))
    name, unit = next(iter(graph.units.items()))
    assert unit.width == 6
    plan = sc.Plan.of(graph, {name: [0, 1, 2]})
    sc.save(sc.prune(graph, plan), plan, tmp_path / "small")
    (tmp_path / "small" / "config.json").write_text(json.dumps({"command": {"model": "lenet5", "data": "digits"}}))
    return tmp_path / "small"


def test_export_of_a_run_folder(folder: Path) -> None:
    out = folder.parent / "small.pt2"
    found = run("export", folder, out, "--fold-bn", "--data", "digits", "--images", 7)
    assert found.exit_code == 0, found.output
    assert f"{out.stat().st_size:,} bytes, pt2" in found.stdout.replace("\n", " ")
    assert "compared with PyTorch on 8 images: off by" in found.stdout
    model = torch.export.load(out).module()
    with torch.no_grad():
        assert model(torch.zeros(3, 1, 32, 32)).shape == (3, 10)


def test_bench_of_a_run_folder_beside_its_original(folder: Path) -> None:
    found = run("bench", folder, "--engine", "eager", "--batch", 1, "--batch", 2, "--rounds", 2, "--json")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert [(r["network"], r["batch"]) for r in result["rows"]] == [
        ("original", 1),
        ("small", 1),
        ("original", 2),
        ("small", 2),
    ]
    # LeNet-5: 6x25x784 + 16x6x25x100 + 120x400 + 84x120 + 10x84; half of the first convolution is gone
    assert result["networks"]["original"]["macs"] == 117_600 + 240_000 + 48_000 + 10_080 + 840
    assert result["networks"]["small"]["macs"] == 58_800 + 120_000 + 48_000 + 10_080 + 840
    words = run("bench", "lenet5", folder, "--engine", "eager", "--batch", 1, "--rounds", 1)
    assert words.exit_code == 0, words.output
    assert "1.75x fewer" in words.stdout  # 416,520 / 237,720
    assert "where the time goes" in words.stdout


def test_mistakes_are_one_line_and_exit_code_1(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (folder / "config.json").unlink()
    for words, said in (
        (("export", folder, tmp_path / "a.pt2"), "--model NAME"),
        (("export", tmp_path / "empty", tmp_path / "a.pt2"), "plan.json"),
        (("export", "lenet5", tmp_path / "a.exe"), "onnx, pt2, safetensors"),
        (("export", "no-such-network", tmp_path / "a.pt2"), "no-such-network"),
        (("export", folder, tmp_path / "a.pt2", "--model", "lenet5", "--classes", "7"), "another network"),
        (("bench", "lenet5", "resnet20"), "different sizes"),
        (("bench", "lenet5", "--engine", "abacus"), "abacus"),
    ):
        found = run(*words)
        assert found.exit_code == 1, (words, found.output)
        assert said in found.stderr
    assert not (tmp_path / "a.pt2").exists()
