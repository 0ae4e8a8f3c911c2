"""Arguments of the wrong kind in Python are errors in words, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prunus as sc
from tests.run.toys import HOLDOUT, TRAIN, trained


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
        ({"evaluate": lambda model: 1.0}, "your function evaluate is called with .model, loader., but: too many"),
        ({"fit": lambda: None}, "your function fit is called with .model, train, holdout., but: too many"),
        ({"metric_options": 5}, "metric_options must be a dict"),
        ({"metric": []}, r"there is no metric called \[\]"),
        ({"preset": 5}, "preset must be a name or a prunus.Preset, got 5"),
        ({"settings": {"target": 0.5}}, "settings must be an object such as prunus.Settings"),
        ({"train": None}, "train must be batches of .images, labels., such as a DataLoader or a list; got NoneType"),
        ({"holdout": 5}, "holdout must be batches"),
        ({"test": 5}, "test must be batches"),
        ({"model": nn.Linear(3, 4).to("meta")}, "the network is on the meta device"),
    ],
)
def test_compress(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"model": trained(), "train": TRAIN, "holdout": HOLDOUT, "target": 0.3, **changes}
    with pytest.raises(sc.PrunusError, match=words):
        sc.compress(**arguments)


def test_other_functions() -> None:
    model, example = trained(), TRAIN[0][0][:1]
    graph = sc.trace(model, example)
    scores = sc.score(graph, None, "l1")
    assert isinstance(scores, sc.Scores)
    plan = sc.uniform(graph, scores, 0.3)
    for words, call in {
        "expected the graph that prunus.trace": lambda: sc.score(model, TRAIN),
        "expected the graph that prunus.trace.* got Small": lambda: sc.repair(model, plan, TRAIN),
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
        "below 1, got '0.3'": lambda: sc.uniform(graph, scores, "0.3"),
        "got dict; several metrics give a dict": lambda: sc.uniform(graph, {"l1": scores}, 0.3),
        "unit 'stem.*' is not in both": lambda: sc.uniform(graph, scores, 0.3, units="stem*"),
        "expected the scores that prunus.score returns, got list": lambda: sc.sensitivity(graph, HOLDOUT, scores),
        "expected what prunus.sensitivity returns, got NoneType": lambda: sc.decide(graph, scores, None),
        "images must be a tensor or batches, got Plan": lambda: sc.repair(graph, plan, plan),
        "model must be a torch.nn.Module, got ChannelGraph": lambda: sc.fit(graph, TRAIN, epochs=1),
        "teacher must be a torch.nn.Module, got str": lambda: sc.fit(model, TRAIN, epochs=1, teacher="resnet"),
        "with the path of a folder, got NoneType": lambda: sc.save(sc.prune(graph, plan), plan, None),
        r"evaluate.model, loader. with a torch.nn.Module, got list": lambda: sc.evaluate(HOLDOUT, model),
        "loader must be batches of .* got NoneType": lambda: sc.evaluate(model, None),
        r"topk should be .1,. or .1, 5., not 1": lambda: sc.evaluate(model, HOLDOUT, topk=1),
        "expected a torch.nn.Module, got Small": lambda: sc.export(type(model), example, "x.onnx"),
        "with the path of a file, got NoneType": lambda: sc.export(model, example, None),
        "there is no engine called 'eagerr'": lambda: sc.bench({"a": model}, example, engines="eagerr"),
        r"batch sizes >= 1; got 1 models, 20, 0, .0,.": lambda: sc.bench({"a": model}, example, (0,)),
        r"several numbers, as in .8,.": lambda: sc.latency({"a": model}, example, batch_sizes=8),
        "threads must be at least 1, got -1": lambda: sc.latency({"a": model}, example, threads=-1),
        "expected a plan, got int": lambda: plan.then(5),
        r"of shape ..1, 3, 6, 6.,.: NotImplementedError": lambda: sc.trace(model, example.numpy()),
    }.items():
        with pytest.raises(sc.PrunusError, match=words):
            call()  # type: ignore[no-untyped-call]


def test_a_single_image_for_a_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 6), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 4))
    with pytest.raises(
        sc.RunError, match=r"epoch 1, step 1: a batch norm cannot be trained on a single image .*drop_last"
    ):
        sc.fit(model, [(torch.randn(1, 3, 6, 6), torch.tensor([1]))], epochs=1)
