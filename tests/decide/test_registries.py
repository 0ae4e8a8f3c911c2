"""A new cost or split is one file: it is found, listed, accepted by the settings and used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import prunus as sc
from prunus.decide import costs, splits
from prunus.decide.costs import COSTS
from prunus.decide.splits import SPLITS
from prunus.run.settings import Settings, check_settings
from prunus.score.scores import Scores
from tests import nets
from tests.run.toys import run

COST = '''"""Number of channels that are kept."""

from prunus.decide.costs import CostEntry


def of(graph):
    return lambda keep: float(sum(len(keep.get(name, range(unit.width))) for name, unit in graph.units.items()))


ENTRY = CostEntry(of=of)
'''

SPLIT = '''"""Every other channel of the widest unit."""

from prunus.graph.plan import Plan
from prunus.decide.splits import Split


def plan(task):
    widest = max(task.graph.units.values(), key=lambda unit: unit.width)
    return Plan.of(task.graph, task.graph.balance({widest.name: list(range(0, widest.width, 2))}))


ENTRY = Split(plan=plan, ranks=False, metric="l1")
'''


def test_a_cost_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "channel_count.py").write_text(COST)
    monkeypatch.setattr(costs, "__path__", [*costs.__path__, str(tmp_path)])
    monkeypatch.setattr(costs.__spec__, "submodule_search_locations", costs.__path__)
    assert list(COSTS) == ["channel_count", "latency", "macs", "params"]
    assert COSTS.help("channel_count") == "Number of channels that are kept"
    check_settings(Settings(target=0.5, cost="channel_count"))
    graph = sc.trace(nets.Residual().eval(), torch.zeros(1, 3, 8, 8))  # conv1:in 4, conv1:out 6, fc:in 4
    scores = Scores("rising", {name: np.arange(unit.width, dtype=float) for name, unit in graph.units.items()})
    batch = [(torch.randn(6, 3, 8, 8), torch.zeros(6, dtype=torch.long))]
    found = sc.sensitivity(graph, scores, batch, cost="channel_count", alpha=2, exact=True)
    assert found.cost == "channel_count"
    assert {name: (row.channels, row.saved) for name, row in found.tried.items()} == {
        "conv1:in": (2, 2.0),
        "conv1:out": (2, 2.0),
    }


def test_a_split_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "every_other.py").write_text(SPLIT)
    monkeypatch.setattr(splits, "__path__", [*splits.__path__, str(tmp_path)])
    monkeypatch.setattr(splits.__spec__, "submodule_search_locations", splits.__path__)
    assert "every_other" in SPLITS and SPLITS.help("every_other") == "Every other channel of the widest unit"
    result = run(target=0.3, split="every_other", epochs=0)  # conv1:out has 24 channels, 82% of the MACs
    assert result.rounds[0].chosen == {"conv1:out": 12}
    assert result.summary["settings"]["split"] == "every_other" and result.summary["settings"]["metric"] == "l1"
