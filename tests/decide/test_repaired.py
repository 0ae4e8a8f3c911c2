"""Units judged after a repair: whatever the repair is, in every way of judging."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import prunus as sc
from prunus.decide.sensitivity import Sensitivity, sensitivity
from tests.decide.test_sensitivity import case
from tests.decide.toys import measured, without_weakest
from tests.proof import assert_accuracy


@pytest.mark.parametrize("words", [{"exact": True}, {"tolerance": 0.0}, {"measure": "loss", "exact": True}, {"own": 1}])
def test_a_repair_of_ones_own_is_in_force_when_a_unit_is_judged(words: dict[str, Any]) -> None:
    """Here: what is left of the readers' weights with the other sign."""
    model, graph, scores, pairs = case(60)

    @contextmanager
    def turned(unit: str, kept: Sequence[int]) -> Iterator[None]:
        with sc.zeroed(graph, {unit: kept}), torch.no_grad():  # puts the weights back
            for reader in graph.units[unit].readers:
                model.get_submodule(reader.module).weight.mul_(-1)
            yield

    if words.pop("own", None):
        words = {"measure": lambda net, loader: -measured(net, loader)[1]}
    found = sensitivity(graph, scores, pairs, alpha=1, repair=turned, **words)
    plain = sensitivity(graph, scores, pairs, alpha=1, **words)
    assert (found.repair, plain.repair) == ("own", "none") and found.base_value == plain.base_value
    for name, row in found.tried.items():
        if row.num_images in (0, 60):  # a race need not show all images to all units
            with turned(name, without_weakest(graph.units[name], scores.values[name], row.channels)):
                if found.measure == "accuracy":
                    assert_accuracy(row.value, model, pairs)
                else:
                    assert row.value == pytest.approx(-measured(model, pairs)[1], rel=1e-4)
    assert sum(row.num_images in (0, 60) for row in found.tried.values()) >= 2
    losses = [[row.loss or row.value for row in which.tried.values()] for which in (found, plain)]
    assert any(abs(one - other) > 1e-3 for one, other in zip(*losses, strict=True))


def test_how_it_was_repaired_is_in_the_file_and_older_files_are_read() -> None:
    _, graph, scores, pairs = case(60)
    found = sensitivity(graph, scores, pairs, alpha=1, exact=True, repair=sc.repair_each(graph, pairs, how="bn"))
    words = found.to_dict()
    assert words["repair"] == "bn" and Sensitivity.from_dict(words) == found
    del words["repair"]
    assert Sensitivity.from_dict(words).repair == "none"
