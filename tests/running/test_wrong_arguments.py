"""Arguments of the wrong kind in Python are errors in words, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import secateur as sc
from tests.running.toys import HOLDOUT, TRAIN, trained


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 1.5}, "rounds must be a whole number, got 1.5"),
        ({"rounds": True}, "rounds must be at least 1, got True"),
        ({"epochs": 0.5}, "epochs must be a whole number, got 0.5"),
        ({"k": 1.5}, "k must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"round_to": 1.5}, "round_to must be a whole number"),
        ({"distill": "yes"}, "distill must be True or False, got 'yes'"),
        ({"fit": 5}, "fit must be a function, got 5"),
        ({"evaluate": "mine"}, "evaluate must be a function"),
        ({"metric_options": 5}, "metric_options must be a dict"),
        ({"metric": []}, r"there is no metric called \[\]"),
        ({"preset": 5}, "preset must be a name or a secateur.Preset, got 5"),
        ({"settings": {"target": 0.5}}, "settings must be an object such as secateur.Settings"),
        ({"train": None}, "train must be batches of .images, labels., such as a DataLoader or a list; got NoneType"),
        ({"holdout": 5}, "holdout must be batches"),
        ({"test": 5}, "test must be batches"),
        ({"model": nn.Linear(3, 4).to("meta")}, "the network is on the meta device"),
    ],
)
def test_compress(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"model": trained(), "train": TRAIN, "holdout": HOLDOUT, "target": 0.3, **changes}
    with pytest.raises(sc.SecateurError, match=words):
        sc.compress(**arguments)


def test_other_functions() -> None:
    model, example = trained(), TRAIN[0][0][:1]
    graph = sc.trace(model, example)
    plan = sc.uniform(graph, sc.score(graph, None, "l1"), 0.3)
    for words, call in {
        "expected the graph that secateur.trace": lambda: sc.score(model, TRAIN),
        "expected the graph that secateur.trace.* got Small": lambda: sc.repair(model, plan, TRAIN),
        "expected a plan, got NoneType": lambda: sc.prune(graph, None),
        "expected a dict of unit -> kept channels, got list": lambda: sc.Plan.of(graph, [1]),
        "positions must be a whole number": lambda: sc.repair(graph, plan, TRAIN, positions=1.5),
        "epochs must be at least 1, got '1'": lambda: sc.fit(model, TRAIN, epochs="1"),
        "models must be a dict of name -> network, got list": lambda: sc.bench([model], example),
        "expected a torch.nn.Module, got NoneType": lambda: sc.fold_batch_norm(None, example),
        "expected register_rule": lambda: sc.register_rule(5, sc.rules.elementwise),
        "expected register_rule.target, rule.": lambda: sc.register_rule(nn.SiLU, "elementwise"),
        "pass the class SiLU, not an instance": lambda: sc.register_rule(nn.SiLU(), sc.rules.elementwise),
        "a metric must be an entry of its registry, got int": lambda: sc.METRICS.register(5),
    }.items():
        with pytest.raises(sc.SecateurError, match=words):
            call()  # type: ignore[no-untyped-call]


def test_a_single_image_for_a_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 6), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 4))
    with pytest.raises(
        sc.RunError, match=r"epoch 1, step 1: a batch norm cannot be trained on a single image .*drop_last"
    ):
        sc.fit(model, [(torch.randn(1, 3, 6, 6), torch.tensor([1]))], epochs=1)
