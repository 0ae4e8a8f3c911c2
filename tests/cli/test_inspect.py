"""`prunus inspect`: the paper's totals, what stays and why; --scores, --sensitivity, --latency."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from typer.testing import Result

import prunus as pr
from prunus.cli.network import open_model, resolve
from prunus.scoring.score import score
from prunus.scoring.scores import load_scores
from prunus.timing.latency_table import LatencyTable
from prunus.util.typed_json import to_data
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.deciding.toys import seeded
from tests.proof import counted_macs

EXAMPLE = torch.zeros(1, 3, 32, 32)


class Odd(nn.Module):
    """Its last layer writes the outputs; a literal in `view` holds the middle one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1), nn.Linear(6 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(torch.relu(self.a(x))).view(-1, 6 * 64))


def build(num_classes: int = 5) -> nn.Module:
    """A factory as a user would name it: tests.cli.test_inspect:build."""
    return Odd()


def test_totals_of_resnet56() -> None:
    said = lines(prunus("inspect", "resnet56", columns=200))
    assert said[0].startswith("resnet56 on 3 x 32 x 32: 125.49 M MACs, ")
    assert "55 units" in said[0]  # 54, and the classifier's reading of the stream
    assert said[1].startswith("peak of activations: 192.0 KiB for one image")
    layers = [line.split() for line in said if line.startswith("layer1.0.conv1 ")]
    assert layers == [["layer1.0.conv1", "16", "→", "16", "2.30", "K", "2.36", "M"]]  # 16x16x9, x 32x32


def test_as_json() -> None:
    facts = json.loads(prunus("inspect", "resnet20", "--json").stdout)
    assert facts["macs"] == counted_macs(create("resnet20").eval(), EXAMPLE)
    assert facts["params"] == sum(p.numel() for p in create("resnet20").parameters() if p.dim() > 1)
    assert facts["layers"]["linear"] == {"inputs": 64, "outputs": 10, "macs": 640, "params": 640, "depthwise": False}
    # Conv1 of the first block reads 16 maps of 32 x 32 and writes 16, which its norm reads while the stream waits.
    assert facts["memory"] == 3 * 16 * 32 * 32 * 4
    unit = facts["units"]["layer2.0.conv1:out"]
    assert unit == {
        "kind": "private",
        "width": 32,
        "granule": 1,
        "readers": ["layer2.0.conv2"],
        "writers": ["layer2.0.conv1"],
    }
    half = json.loads(prunus("inspect", "resnet20", "--json", "--size", "16", "--classes", "7").stdout)
    assert half["layers"]["conv1"]["macs"] == facts["layers"]["conv1"]["macs"] // 4
    assert half["layers"]["linear"]["outputs"] == 7


def grey(num_classes: int = 4) -> nn.Module:
    """A factory without `shape`: only the plan of a folder knows that images are 1 x 12 x 12."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(512, num_classes))


def test_the_plan_knows_the_shape_and_a_name_goes_with_a_folder(tmp_path: Path) -> None:
    example = torch.zeros(1, 1, 12, 12)
    graph = pr.trace(grey().eval(), example)
    plan = pr.Plan.of(graph, {"0:out": range(5)})
    small, folder = pr.prune(graph, plan), tmp_path / "small"
    pr.save(small, plan, folder)
    name = "tests.cli.test_inspect:grey"
    bare = prunus("inspect", folder)
    assert bare.exit_code == 1 and f"as in NAME={folder}" in "".join(bare.stderr.split("\n"))
    facts = json.loads(prunus("inspect", f"{name}={folder}", "--json").stdout)
    assert facts["macs"] == counted_macs(small, example)


def test_what_stays_and_why() -> None:
    said = lines(prunus("inspect", "tests.cli.test_inspect:build", "--size", "8", columns=200))
    text = "\n".join(said[next(i for i, line in enumerate(said) if line.startswith("Frozen")) :])
    assert "b" in text.split(":")[1] and "fc" in text
    facts = json.loads(prunus("inspect", "tests.cli.test_inspect:build", "--size", "8", "--json").stdout)
    assert set(facts["units"]) == {"a:out"} and set(facts["frozen"]) == {"b", "fc"}


def test_without_a_network_the_built_in_ones_are_listed() -> None:
    said = lines(prunus("inspect"))
    assert said[0].split() == ["name", "input", "classes", "MACs", "weights", "params"]
    by_name = {line.split()[0]: line.split() for line in said}
    assert by_name["resnet56"][1:9] == ["3x32x32", "10", "125.49", "M", "848.94", "K", "853.02", "K"]
    assert by_name["vgg16_imagenet"][1:9] == ["3x224x224", "1000", "15.47", "G", "138.34", "M", "138.36", "M"]
    assert sum(len(line.split()) > 1 and "x" in line.split()[1] for line in said[1:21]) == 20
    assert any(line.startswith("zero-padded shortcuts: resnet8, resnet14") for line in said)


# -- scores, sensitivity, latency

SCORES = ["--data", "digits", "--num-images", "100", "--size", "32", "--device", "cpu"]


def scored(metrics: str, *more: str | Path) -> Result:
    return prunus("inspect", "lenet5", "--scores", metrics, *SCORES, *more)


def test_a_table_of_scores_and_files(tmp_path: Path) -> None:
    result = scored("gsd,l1", "--scores", "l2", "--out", tmp_path / "s", "--show", "2")
    said = lines(result)
    assert said[0] == "4 units scored by gsd, 100 images; higher means keep"
    assert said[1].split() == ["unit", "kind", "width", "weakest", "strongest"]
    kept = load_scores(tmp_path / "s")
    assert list(kept) == ["gsd", "l1", "l2"]
    row = next(line for line in said if line.startswith("conv1:out")).split()
    order = kept["gsd"].order("conv1:out")
    assert [int(cell.split(":")[0]) for cell in row[3:]] == [order[0], order[1], order[-1], order[-2]]
    assert "rank correlation (Spearman, mean over units)" in said
    assert "the network is untrained" in result.stderr


def test_scores_are_those_of_the_library(tmp_path: Path) -> None:
    lines(scored("gsd:ridge=0.5", "--out", tmp_path))
    images = load("digits", size=32)
    graph = pr.trace(open_model(resolve("lenet5"), images), torch.zeros(1, *images.shape))
    wanted = score(graph, images.loader("train", 128, limit=100, seed=0), "gsd", ridge=0.5)
    found = load_scores(tmp_path)["gsd:ridge=0.5"]
    assert found.options == {"ridge": 0.5} and found.num_images == 100
    assert list(found.values) == list(graph.units)
    for unit, values in wanted.values.items():
        np.testing.assert_allclose(found.values[unit], values, rtol=1e-6)


SHORT = ["--sensitivity", "--data", "digits", "--num-images", "60", "--num-eval-images", "40"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet8.safetensors"
    save_model(seeded(lambda: create("resnet8", num_classes=10, in_channels=1)), str(path))
    return path


@pytest.fixture(scope="module")
def ranked(weights: Path) -> tuple[Path, list[str]]:
    """The folder of --sensitivity --exact, and what was printed."""
    out = weights.parent / "ranked"
    return out, lines(prunus("inspect", "resnet8", "--weights", weights, *SHORT, "--exact", "--out", out))


def test_sensitivity_as_table_json_and_picture(ranked: tuple[Path, list[str]]) -> None:
    folder, said = ranked
    found = json.loads((folder / "sensitivity.json").read_text())
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


def test_units_ranked_after_their_repair(weights: Path, ranked: tuple[Path, list[str]], tmp_path: Path) -> None:
    words = ["--exact", "--repair", "solve", "--num-repair-images", "50"]
    lines(prunus("inspect", "resnet8", "--weights", weights, *SHORT, *words, "--out", tmp_path))
    solved, cut = (json.loads((folder / "sensitivity.json").read_text()) for folder in (tmp_path, ranked[0]))
    assert (solved["repair"], cut["repair"]) == ("solve", "none") and solved["base_loss"] == cut["base_loss"]
    gaps = [[abs(row["loss"] - found["base_loss"]) for row in found["tried"].values()] for found in (solved, cut)]
    assert sum(gaps[0]) < 0.7 * sum(gaps[1])  # repaired units are nearer to the whole network


QUICK = "--latency", "--engine", "eager", "--batch", "1", "--threads", "1"


def test_a_table_of_times(tmp_path: Path) -> None:
    out = tmp_path / "table.json"
    shown = lines(prunus("inspect", "lenet5", *QUICK, "--out", out))
    assert all(len(line) <= 80 for line in shown[1:-1])
    assert shown[0].startswith("eager ") and "batch 1, 1 thread" in shown[0]
    assert {line.split()[0] for line in shown[2:7]} == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    assert any(line.startswith("what is not a layer") for line in shown)
    table = LatencyTable.load(out)
    assert set(table.layers) == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    printed = json.loads("".join(lines(prunus("inspect", "lenet5", *QUICK, "--json", columns=10_000))))
    assert printed == json.loads(json.dumps(to_data(table)))  # from the cache
