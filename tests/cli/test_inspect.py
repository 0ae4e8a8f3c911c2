"""`prunus inspect`: the paper's totals, what a plan takes, what stays and why."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

import prunus as pr
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
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
    layers = [line.split() for line in said if line.startswith("layer1.0.conv1 ")]
    assert layers == [["layer1.0.conv1", "16", "→", "16", "2.30", "K", "2.36", "M"]]  # 16x16x9, x 32x32


def test_as_json() -> None:
    facts = json.loads(prunus("inspect", "resnet20", "--json").stdout)
    assert facts["macs"] == counted_macs(create("resnet20").eval(), EXAMPLE)
    assert facts["params"] == sum(p.numel() for p in create("resnet20").parameters() if p.dim() > 1)
    assert facts["layers"]["linear"] == {"inputs": 64, "outputs": 10, "macs": 640, "params": 640, "depthwise": False}
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


def test_a_plan(tmp_path: Path) -> None:
    graph = pr.trace(create("resnet20").eval(), EXAMPLE)
    plan = pr.Plan.of(graph, {"layer1.0.conv1:out": range(4), "layer2.0.conv1:in": range(10)})
    (tmp_path / "plan.json").write_text(plan.to_json())
    left = counted_macs(pr.prune(graph, plan), EXAMPLE)
    facts = json.loads(prunus("inspect", "resnet20", "--plan", tmp_path / "plan.json", "--json").stdout)
    assert facts["pruned"]["macs"] == left
    said = lines(prunus("inspect", "resnet20", "--plan", tmp_path / "plan.json", columns=200))
    assert said[1].startswith(f"with the plan: {left / 1e6:.2f} M MACs ({100 * (1 - left / graph.macs):.1f}% removed)")
    assert any(line.startswith("layer1.0.conv1 ") and "⇒" in line and "75.0%" in line for line in said)
    units = {line.split()[0]: line.split()[-1] for line in said if ":" in line.split(" ")[0]}
    assert units["layer1.0.conv1:out"] == "12" and units["layer2.0.conv1:in"] == "6"


def test_what_stays_and_why() -> None:
    said = lines(prunus("inspect", "tests.cli.test_inspect:build", "--size", "8", columns=200))
    text = "\n".join(said[next(i for i, line in enumerate(said) if line.startswith("Frozen")) :])
    assert "b" in text.split(":")[1] and "fc" in text
    facts = json.loads(prunus("inspect", "tests.cli.test_inspect:build", "--size", "8", "--json").stdout)
    assert set(facts["units"]) == {"a:out"} and set(facts["frozen"]) == {"b", "fc"}


def test_a_plan_of_another_network(tmp_path: Path) -> None:
    graph = pr.trace(create("resnet20").eval(), EXAMPLE)
    (tmp_path / "plan.json").write_text(pr.Plan.of(graph, {}).to_json())
    result = prunus("inspect", "resnet8", "--plan", tmp_path / "plan.json")
    assert result.exit_code == 1 and "the plan is for another network" in result.stderr


def test_without_a_network_the_built_in_ones_are_listed() -> None:
    said = lines(prunus("inspect"))
    assert said[0].split() == ["name", "input", "classes", "MACs", "weights", "params"]
    by_name = {line.split()[0]: line.split() for line in said}
    assert by_name["resnet56"][1:9] == ["3x32x32", "10", "125.49", "M", "848.94", "K", "853.02", "K"]
    assert by_name["vgg16_imagenet"][1:9] == ["3x224x224", "1000", "15.47", "G", "138.34", "M", "138.36", "M"]
    assert sum(len(line.split()) > 1 and "x" in line.split()[1] for line in said[1:21]) == 20
    assert any(line.startswith("zero-padded shortcuts: resnet8, resnet14") for line in said)
