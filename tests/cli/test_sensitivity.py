"""`prunus sensitivity`: table, JSON, picture and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_model

from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.decide.toys import seeded

SHORT = ["--data", "digits", "--num-images", "60", "--limit", "40"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet8.safetensors"
    save_model(seeded(lambda: create("resnet8", num_classes=10, in_channels=1)), str(path))
    return path


def test_table_json_and_picture(weights: Path, tmp_path: Path) -> None:
    said = lines(prunus("sensitivity", "resnet8", "--weights", weights, *SHORT, "--exact", "--out", tmp_path))
    found = json.loads((tmp_path / "sensitivity.json").read_text())
    units = [f"layer{n}.0.conv1:{end}" for n in (1, 2, 3) for end in ("in", "out")]
    assert sorted(found["tried"]) == units and found["num_images"] == 40 and found["split"] == "algorithm1"
    assert {name: row["channels"] for name, row in found["tried"].items()} == {
        "layer1.0.conv1:in": 6,
        "layer1.0.conv1:out": 3,
        "layer2.0.conv1:in": 12,
        "layer2.0.conv1:out": 8,  # (16 + 32) x 9 x 256 MACs a channel, those of layer1 have (16 + 16) x 9 x 1024
        "layer3.0.conv1:in": 24,
        "layer3.0.conv1:out": 16,
    }
    rows = {line.split()[0]: line for line in said if line.startswith("layer")}
    assert sorted(rows) == units and sum(line.rstrip().endswith("chosen") for line in rows.values()) == 2
    best = sorted(units, key=lambda n: (-found["tried"][n]["value"], found["tried"][n]["loss"]))[:2]
    assert all(rows[name].rstrip().endswith("chosen") for name in best)
    for name, line in rows.items():
        assert f"{100 * found['tried'][name]['accuracy']:.2f}%" in line
    assert any(f"whole network: {100 * found['base_accuracy']:.2f}% on 40 held-out images" in line for line in said)
    with Image.open(tmp_path / "sensitivity.png") as picture:
        assert picture.width > 600 and len(picture.convert("RGB").getcolors(1 << 20) or []) > 3


def test_curves(weights: Path, tmp_path: Path) -> None:
    words = ["--split", "ratio", "--exclude", "layer[23]*", "--measure", "loss", "--k", "1"]
    lines(prunus("sensitivity", "resnet8", "--weights", weights, *SHORT, *words, "--out", tmp_path))
    found = json.loads((tmp_path / "sensitivity.json").read_text())
    assert found["alpha"] is None and found["measure"] == "loss"
    curve = found["curves"]["layer1.0.conv1:out"]
    assert [row["channels"] for row in curve] == [2, 3, 5, 6, 8, 10, 11, 13, 14]  # of 16
    assert (tmp_path / "sensitivity.png").stat().st_size > 5000


def test_units_judged_after_their_repair(weights: Path, tmp_path: Path) -> None:
    words = ["--exact", "--repair", "solve", "--num-repair-images", "50"]
    lines(prunus("sensitivity", "resnet8", "--weights", weights, *SHORT, *words, "--out", tmp_path / "solve"))
    lines(prunus("sensitivity", "resnet8", "--weights", weights, *SHORT, "--exact", "--out", tmp_path / "cut"))
    solved, cut = (json.loads((tmp_path / name / "sensitivity.json").read_text()) for name in ("solve", "cut"))
    assert (solved["repair"], cut["repair"]) == ("solve", "none") and solved["base_loss"] == cut["base_loss"]
    gaps = [[abs(row["loss"] - found["base_loss"]) for row in found["tried"].values()] for found in (solved, cut)]
    assert sum(gaps[0]) < 0.7 * sum(gaps[1])  # repaired units are nearer to the whole network


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--metric", "gsdd"], "there is no metric called 'gsdd'"),
        (["--alpha", "-1"], "alpha must be above 0"),
        (["--k", "100"], "k must lie between 1 and"),
        (["--measure", "f1"], "measure must be"),
        (["--split", "algorithm"], "did you mean algorithm1?"),
        (["--cost", "watts"], "there is no cost called 'watts'"),
        (["--repair", "glue"], "there is no repair called 'glue'"),
        (["--repair", "bn", "--num-repair-images", "0"], "num_repair_images must be at least 1"),
        (["--exclude", "*"], "no unit is left to prune"),
        (["--holdout", "none"], "has no holdout images"),
    ],
)
def test_mistakes(weights: Path, tmp_path: Path, words: list[str], complaint: str) -> None:
    result = prunus("sensitivity", "resnet8", "--weights", weights, *SHORT, *words, "--out", tmp_path / "out")
    assert result.exit_code == 1 and complaint in result.stderr
    assert not (tmp_path / "out").exists()


def test_usage() -> None:
    assert prunus("sensitivity").exit_code == 2
    assert prunus("sensitivity", "resnet8", "--alpha", "three").exit_code == 2
