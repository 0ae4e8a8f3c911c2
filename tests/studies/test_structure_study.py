"""Weights and MACs by layer and block, checked with the supplement's tables as printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import prunus as pr
from prunus.errors import PlanError
from prunus.studies.recipes import load_recipe
from prunus.studies.structure_study import plan_of_widths, structure
from prunus.zoo import models
from tests.cli.command_line import lines, prunus

WIDTHS = "11,39,60,92,112,97,191,249,233,320,512,438,512"

# Table 3: weights and FLOPs of the original, and those left by G-SD-B with the shares removed.
VGG16 = """
1.7K  87M   0.3K  82.8 14.9M 82.8
36.9K 1.85B 3.9K  89.5 0.19B 89.5
73.7K 0.92B 21.1K 71.4 0.26B 71.4
0.15M 1.85B 49.7K 66.3 0.62B 66.3
0.29M 0.92B 92.7K 68.6 0.29B 68.6
0.59M 1.85B 97.8K 83.4 0.31B 83.4
0.59M 1.85B 0.17M 71.7 0.52B 71.7
1.18M 0.92B 0.43M 63.7 0.34B 63.7
2.36M 1.85B 0.52M 77.9 0.41B 77.9
2.36M 1.85B 0.67M 71.6 0.53B 71.6
2.36M 0.46B 1.47M 37.5 0.29B 37.5
2.36M 0.46B 2.02M 14.5 0.40B 14.5
2.36M 0.46B 2.02M 14.4 0.40B 14.4
102.8M 0.10B 102.8M 0 0.10B 0
16.8M 16.8M 16.8M 0 16.8M 0
4.1M  4.1M  4.1M  0 4.1M  0
138.34M 15.47B 131.19M 5.2 4.68B 69.7
"""
# Table 4: the same for ResNet-50's blocks. The printed total of the FLOPs left is not the sum of the rows.
RESNET50 = """
9.4K  0.12B 9.4K  0    0.12B 0
73.7K 0.23B 42.5K 42.3 0.13B 42.3
69.6K 0.22B 10.9K 84.3 34.3M 84.3
69.6K 0.22B 25.5K 63.3 80.1M 63.3
0.38M 0.37B 0.30M 20.8 0.28B 25.2
0.28M 0.22B 49.9K 82.1 39.1M 82.1
0.28M 0.22B 63.8K 77.1 50.0M 77.1
0.28M 0.22B 93.0K 66.6 72.9M 66.6
1.51M 0.37B 1.38M 8.7  0.33B 10.6
1.11M 0.22B 0.38M 65.7 74.9M 65.7
1.11M 0.22B 0.31M 72.2 60.8M 72.2
1.11M 0.22B 0.30M 73.2 58.6M 73.2
1.11M 0.22B 0.43M 61.4 84.2M 61.4
1.11M 0.22B 0.69M 38.0 0.14B 38.0
6.03M 0.37B 5.78M 4.2  0.36B 4.3
4.46M 0.22B 3.72M 16.5 0.18B 16.5
4.46M 0.22B 3.96M 11.1 0.19B 11.1
2.05M 2.05M 2.05M 0    2.05M 0
25.50M 4.09B 19.59M 23.2 2.28B 44.3
"""


def printed(word: str) -> tuple[float, float]:
    """'0.19B' -> 0.19e9 and what its last digit is worth."""
    scale = {"K": 1e3, "M": 1e6, "B": 1e9}[word[-1]]
    digits = len(word[:-1].partition(".")[2])
    return float(word[:-1]) * scale, scale * 10.0**-digits


def agrees(number: float, word: str) -> bool:
    """Whether a number is what is printed, which may have been rounded or cut off."""
    value, last = printed(word)
    return abs(number - value) <= last


@pytest.fixture(scope="module")
def vgg16() -> pr.ChannelGraph:
    return pr.trace(models.create("vgg16_imagenet").eval(), models.example("vgg16_imagenet"), check=False)


def test_vgg16_as_in_the_supplement(vgg16: pr.ChannelGraph) -> None:
    rows = structure(vgg16, plan_of_widths(vgg16, [int(width) for width in WIDTHS.split(",")]))
    for row, line in zip(rows, VGG16.strip().splitlines(), strict=True):
        params, macs, params_left, params_gone, macs_left, macs_gone = line.split()
        assert agrees(row["params"], params) and agrees(row["macs"], macs), row
        # The printed total of the MACs left, 4.68 B, is not the sum of the rows, which is 4.70 B.
        assert agrees(row["params_pruned"], params_left), row
        assert agrees(row["macs_pruned"], macs_left) or row["part"] == "total", row
        for key, gone in (("params_removed", params_gone), ("macs_removed", macs_gone)):
            assert row[key] == pytest.approx(float(gone), abs=0.101), row  # both were rounded to a tenth
    assert rows[-1]["part"] == "total" and rows[-1]["layers"] == 16
    assert rows[-1]["params_pruned"] == 131_198_209 and rows[-1]["macs_pruned"] == 4_691_208_256
    assert rows[0]["macs_pruned"] == 11 * 3 * 9 * 224 * 224


def test_no_other_widths_of_vgg16_fit_the_supplement() -> None:
    """Layer by layer, all widths with which weights and percentages are those that are printed."""
    whole = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    chains = [[3]]
    for place, line in enumerate(VGG16.strip().splitlines()[:13]):
        _, _, left, gone, _, _ = line.split()
        share = whole[place] * whole[place + 1]
        chains = [
            [*chain, width]
            for chain in chains
            for width in range(1, whole[place + 1] + 1)
            if agrees(9 * chain[-1] * width, left)
            and abs(100 * (1 - chain[-1] * width / share) - float(gone)) < 0.06  # conv5_3 is cut off: 14.453 is 14.4
        ]
    assert [",".join(map(str, chain[1:])) for chain in chains] == [WIDTHS]
    assert load_recipe("structure-vgg16-imagenet-b").run["widths"] == WIDTHS


def test_resnet50_by_block_as_in_the_supplement() -> None:
    graph = pr.trace(models.create("resnet50").eval(), models.example("resnet50"), check=False)
    pairs = (pair.split("=") for pair in load_recipe("structure-resnet50-imagenet-b").run["widths"].split(","))
    rows = structure(graph, plan_of_widths(graph, {unit: int(width) for unit, width in pairs}), "block")
    for row, line in zip(rows, RESNET50.strip().splitlines(), strict=True):
        params, macs, params_left, params_gone, macs_left, macs_gone = line.split()
        assert agrees(row["params"], params) and agrees(row["macs"], macs), row
        # 73.2% removed of 218.4 M MACs are 58.5 M, not the 58.6 M that are printed: the share is rounded, too.
        assert row["params_pruned"] == pytest.approx(printed(params_left)[0], rel=0.01), row
        assert row["params_removed"] == pytest.approx(float(params_gone), abs=0.06), row
        if row["part"] != "total":
            assert row["macs_pruned"] == pytest.approx(printed(macs_left)[0], rel=0.05), row  # 0.13B has two digits
            assert row["macs_removed"] == pytest.approx(float(macs_gone), abs=0.06), row
    # The sum of the printed rows, each to a twentieth of a percent: 44.0%, and the printed total is 44.3%.
    assert rows[-1]["macs_removed"] == 44.0 and rows[-1]["params_pruned"] == 19_589_965
    assert [row["part"] for row in rows[:3]] == ["conv1", "layer1.0", "layer1.1"]
    assert [row["layers"] for row in rows[:3]] == [1, 4, 3]  # a block with a shortcut has four


def test_widths_that_cannot_be(vgg16: pr.ChannelGraph) -> None:
    with pytest.raises(PlanError, match="20 widths for 15 units"):
        plan_of_widths(vgg16, [1] * 20)
    with pytest.raises(PlanError, match="there is no unit called 'nothing'"):
        plan_of_widths(vgg16, {"nothing": 3})
    with pytest.raises(PlanError, match="has 64 channels and cannot keep 65"):
        plan_of_widths(vgg16, [65])
    with pytest.raises(PlanError, match="by must be one of layer, block, got 'stage'"):
        structure(vgg16, plan_of_widths(vgg16, []), "stage")  # type: ignore[arg-type]


def test_the_command_on_a_run(lenet_run: Path, tmp_path: Path) -> None:
    run = lenet_run
    said = lines(prunus("study", "structure", run, "--out", tmp_path / "study", columns=200))
    summary = json.loads((run / "summary.json").read_text())
    study = pr.studies.read_study(tmp_path / "study")
    *layers, total = study["rows"]
    assert {row["part"]: [row["macs"], row["macs_pruned"]] for row in layers} == {
        name: layer["macs"] for name, layer in summary["layers"].items()
    }
    assert [total["params"], total["params_pruned"]] == [summary[side]["params"] for side in ("before", "after")]
    assert f"{summary['after']['params']:,} weights and {summary['after']['macs']:,} MACs remain" in said
    picture = tmp_path / "study" / study["pictures"][0]["file"]
    assert ">conv2<" in picture.read_text() and picture.with_suffix(".png").stat().st_size > 5000


def test_the_command_with_widths(tmp_path: Path) -> None:
    words = ["--out", tmp_path / "study", "--by", "block"]
    lines(prunus("study", "structure", "resnet8", "--widths", "layer1.0.conv1:out=4", *words))
    rows = {row["part"]: row for row in pr.studies.read_study(tmp_path / "study")["rows"]}
    # 16 -> 16 -> 16 channels, 3x3 kernels: 4,608 weights; with 4 in the middle a quarter of them.
    assert rows["layer1.0"]["params"] == 2 * 16 * 16 * 9 and rows["layer1.0"]["params_pruned"] == 2 * 16 * 4 * 9
    assert rows["layer1.0"]["macs_removed"] == 75.0 and rows["layer2.0"]["macs_removed"] == 0.0
    wrong = prunus("study", "structure", "resnet8", *words)
    assert wrong.exit_code == 1 and "either the folder of a pruned network, or" in wrong.stderr
    wrong = prunus("study", "structure", "resnet8", "--widths", "a,b", *words)
    assert wrong.exit_code == 1 and "--widths must be 11,39,..." in wrong.stderr


def test_a_layer_outside_of_blocks_stands_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 5, 1))
    graph = pr.trace(model, torch.zeros(1, 3, 8, 8))
    rows = structure(graph, plan_of_widths(graph, [2]), "block")
    # 6x6 positions; 3*2*9 weights and then 2*5.
    assert [(row["part"], row["params_pruned"], row["macs_pruned"]) for row in rows] == [
        ("0", 54, 54 * 36),
        ("1", 10, 360),
        ("total", 64, 64 * 36),
    ]
