"""Input that cannot be used is refused in words, before anything is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunus as pr
from tests.run.toys import HOLDOUT, MACS, QUICK, TRAIN, run, trained

IMAGES, LABELS = HOLDOUT[0]
NEGATIVE, NAN = -1, float("nan")


class Unreadable:
    def __iter__(self) -> Any:
        raise FileNotFoundError("no photo.png")


def damaged() -> nn.Module:
    model = trained()
    model.state_dict()["stem.weight"][0, 0, 0, 0] = NAN
    return model


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        # goals
        ({"target": 0.0}, "target must be above 0 and below 1, got 0.0"),
        ({"target": 50}, "target must be above 0 and below 1, got 50"),
        ({"target": "0.5"}, "target must be above 0 and below 1, got '0.5'"),
        ({"target": 0.99}, r"removing 99.0% of the macs is out of reach.*9\d\.\d% can be removed"),
        ({"params": 100}, r"removing 98.3% of the params is out of reach.*can be removed"),
        ({"macs": MACS}, "meets the goal already: it has 151,648 macs, and the goal is 151,648"),
        ({"params": 10_000}, "meets the goal already: it has 5,848 params, and the goal is 10,000"),
        ({"target": 0.5, "macs": 1000}, "give one goal, not 2: target, macs"),
        ({"target": None, "task": "regression"}, "give a goal: speedup, .*, or max_drop, the R2 that may be lost"),
        ({"speedup": 1.5, "engine": "onnx"}, "onnxruntime"),
        # numbers
        ({"k": 9}, "k must lie between 1 and the number of units .*, 4; got 9"),
        ({"alpha": NAN}, "alpha must be above 0"),
        ({"epochs": NEGATIVE}, "epochs must be at least 0"),
        ({"memory": "a lot"}, "memory must be a size such as 4G or 500M"),
        # names
        ({"metric": "gsdd"}, "there is no metric called 'gsdd': did you mean gsd.*reader_energy"),
        ({"metric": []}, r"there is no metric called \[\]"),
        ({"measure": "f1"}, "measure must be one of accuracy, loss; got 'f1'"),
        ({"split": "x"}, "no split called 'x'"),
        ({"preset": "x"}, "no training preset called 'x'"),
        ({"distill": "yes"}, "distill must be True or False, got 'yes'"),
        ({"exclude": ("*",)}, "no unit is left to prune"),
        ({"colour": 1}, "no setting called 'colour'\\. Available: speedup,"),
        ({"settings": {"target": 0.5}}, "settings must be an object such as prunus.Settings"),
        # what does not go together
        ({"max_drop": 10, "split": "uniform"}, '"uniform" needs a target'),
        ({"max_drop": 1, "last_epochs": 3}, "last_epochs needs a goal"),
        ({"mixed_precision": "fp16", "epochs": 1}, "fp16 needs a GPU; on the CPU use mixed_precision bf16 or no"),
        # functions
        ({"fit": lambda: None}, "your function fit is called with .model, train, holdout., but: too many"),
        ({"evaluate": "mine"}, "evaluate must be a function"),
        ({"evaluate": lambda model: 1.0}, "your function evaluate is called with .model, loader., but: too many"),
        # networks and data
        ({"model": nn.Linear(3, 4).to("meta")}, "the network is on the meta device"),
        ({"train": None}, "train must be batches of .images, labels., such as a DataLoader or a list; got NoneType"),
        ({"train": []}, "train: the loader gave no images"),
        ({"train": [((IMAGES, IMAGES), LABELS)]}, r"train: the network does not run on its images, \[3, 6, 6\] and"),
        ({"holdout": []}, "holdout: the loader gave no images"),
        ({"holdout": [(IMAGES, LABELS + 10)]}, "holdout: batch 0 has labels from 10 to 13, but the model"),
        ({"holdout": iter(HOLDOUT)}, "holdout is a list_iterator, which can be read only once"),
        ({"holdout": (pair for pair in HOLDOUT)}, "holdout is a generator, which can be read only once"),
        ({"holdout": [(IMAGES[:, :1], LABELS)]}, r"holdout: the network does not run on its images, \[1, 6, 6\] "),
        ({"test": [(IMAGES, LABELS, LABELS)]}, "test: batch 0 must be images, a pair .images, labels. or a dict"),
        ({"test": [(IMAGES, LABELS.float())]}, "test: batch 0: labels must be integers"),
        ({"test": [(IMAGES[:, :, :4], LABELS)]}, r"test: the network does not run on its images, \[3, 4, 6\] .those"),
        ({"test": [(IMAGES * NAN, LABELS)]}, "test: batch 0: 30 of 30 images have values that are NaN"),
        ({"test": [(IMAGES.to("meta"), LABELS)]}, "test: batch 0: its images are on the meta device"),
        ({"test": Unreadable()}, "test: its first batch cannot be read: FileNotFoundError: no photo.png"),
        ({"test": [IMAGES]}, "test: its images have no labels, and those of holdout have"),
        ({"train": [x for x, _ in TRAIN], "epochs": 1}, "train: its images have no labels, and those of holdout have"),
        ({"score_on": [(IMAGES[:, :2], LABELS)]}, r"score_on: the network does not run on its images, \[2, 6, 6\]"),
        ({"model": damaged()}, r"1 of 216 numbers of stem\.weight are NaN or infinite: the network"),
        ({"holdout": [IMAGES], "metric": "gsd"}, "gsd needs labels, and the images have none: use one of .*rebuilt"),
    ],
)
def test_it_is_said_before_anything_is_done(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    if "mixed_precision" in changes and torch.accelerator.is_available():
        pytest.skip("fp16 needs a GPU, and here is one")
    goal = {} if {"target", "params", "macs", "ratio", "max_drop", "speedup"} & changes.keys() else {"target": 0.5}
    arguments = {"model": trained(), "train": TRAIN, "holdout": HOLDOUT, **QUICK, **goal, **changes}
    with pytest.raises(pr.PrunusError, match=complaint):
        pr.compress(**arguments, folder=tmp_path / "run")
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"holdout": [HOLDOUT[0], (IMAGES, LABELS + 10)]}, "batch 1 .*the model has 4 classes"),
        ({"evaluate": lambda model, loader: 0.5}, "must return a prunus.Evaluation.*returned float"),
        ({"evaluate": lambda model, loader: pr.Evaluation(NAN, 1.0, 120)}, "the evaluation returned NaN"),
        ({"measure": lambda model, holdout: NAN}, "your measure returned NaN for the whole network"),
        ({"measure": lambda model, holdout: "good"}, "your measure must return a number, but returned str"),
        ({"fit": lambda *_: None}, "must return the retrained network, but returned None; .*`return model`"),
        ({"fit": lambda *_: {}}, "but returned a dict"),
        ({"fit": lambda *_: nn.Linear(2, 2)}, r"weight is \[2, 2\] in the network that it returned, and missing in"),
    ],
)
def test_what_a_run_meets_on_its_way(changes: dict[str, Any], complaint: str) -> None:
    arguments = {"train": TRAIN, "holdout": HOLDOUT, **QUICK, "epochs": 0, "target": 0.3, **changes}
    with pytest.raises(pr.PrunusError, match=complaint):
        pr.compress(trained(), **arguments)


def test_the_reach_that_is_named_is_the_networks() -> None:
    """At the floors: stem 2x3x9x36 (its other outputs die), conv1 and conv2 2x3x9x36, wide 2x2x9x16, fc 32x4."""
    reach = 1 - (1944 + 2 * 1944 + 576 + 128) / MACS
    with pytest.raises(pr.DecideError, match=rf"\b{100 * reach:.1f}% can be removed"):
        run(target=0.99)


def test_other_functions() -> None:
    model, example = trained(), TRAIN[0][0][:1]
    graph = pr.trace(model, example)
    scores = pr.score(graph, None, "l1")
    assert isinstance(scores, pr.Scores)
    plan = pr.uniform(graph, scores, 0.3)
    for words, call in {
        "expected the graph that prunus.trace": lambda: pr.score(model, TRAIN),
        "expected the graph that prunus.trace.* got Small": lambda: pr.repair(model, plan, TRAIN),
        "expected a plan, got NoneType": lambda: pr.prune(graph, None),
        "expected a dict of unit -> kept channels, got list": lambda: pr.Plan.of(graph, [1]),
        "positions must be a whole number": lambda: pr.repair(graph, plan, TRAIN, positions=1.5),
        "epochs must be at least 1, got '1'": lambda: pr.fit(model, TRAIN, epochs="1"),
        "models must be a dict of name -> network, got list": lambda: pr.bench([model], example),
        "expected a torch.nn.Module, got NoneType": lambda: pr.fold_batch_norm(None, example),
        "expected register_rule": lambda: pr.register_rule(5, pr.rules.elementwise),
        "expected register_rule.target, rule.": lambda: pr.register_rule(nn.SiLU, "elementwise"),
        "pass the class SiLU, not an instance": lambda: pr.register_rule(nn.SiLU(), pr.rules.elementwise),
        "a metric must be an entry of its registry, got int": lambda: pr.METRICS.register(5),
        "below 1, got '0.3'": lambda: pr.uniform(graph, scores, "0.3"),
        "got dict; several metrics give a dict": lambda: pr.uniform(graph, {"l1": scores}, 0.3),
        "unit 'stem.*' is not in both": lambda: pr.uniform(graph, scores, 0.3, units="stem*"),
        "expected the scores that prunus.score returns, got list": lambda: pr.sensitivity(graph, HOLDOUT, scores),
        "expected what prunus.sensitivity returns, got NoneType": lambda: pr.decide(graph, scores, None),
        "images must be a tensor or batches, got Plan": lambda: pr.repair(graph, plan, plan),
        "model must be a torch.nn.Module, got ChannelGraph": lambda: pr.fit(graph, TRAIN, epochs=1),
        "teacher must be a torch.nn.Module, got str": lambda: pr.fit(model, TRAIN, epochs=1, teacher="resnet"),
        "with the path of a folder, got NoneType": lambda: pr.save(pr.prune(graph, plan), plan, None),
        r"evaluate.model, loader. with a torch.nn.Module, got list": lambda: pr.evaluate(HOLDOUT, model),
        "loader must be batches of .* got NoneType": lambda: pr.evaluate(model, None),
        "expected a torch.nn.Module, got Small": lambda: pr.export(type(model), example, "x.onnx"),
        "with the path of a file, got NoneType": lambda: pr.export(model, example, None),
        "there is no engine called 'eagerr'": lambda: pr.bench({"a": model}, example, engines="eagerr"),
        r"batch sizes >= 1; got 1 models, 20, 0, .0,.": lambda: pr.bench({"a": model}, example, (0,)),
        r"several numbers, as in .8,.": lambda: pr.latency({"a": model}, example, batch_sizes=8),
        "threads must be at least 1, got -1": lambda: pr.latency({"a": model}, example, threads=-1),
        "expected a plan, got int": lambda: plan.then(5),
        "engines must be a list of names, got int": lambda: pr.bench({"a": model}, example, engines=5),
        "holdout must be batches of .* got NoneType": lambda: pr.sensitivity(graph, scores, None),
        "agreement.original, task. with a torch.nn.Module, got str": lambda: pr.agreement("resnet"),
        r"the network's output is \[\[30, 4\]\], and the original's \[\[30, 108\]\]": lambda: pr.evaluate(
            model, [IMAGES], task=pr.agreement(nn.Flatten())
        ),
        "the example contains no tensor; pass an input of the network": lambda: pr.trace(model, example.numpy()),
    }.items():
        with pytest.raises(pr.PrunusError, match=words):
            call()  # type: ignore[no-untyped-call]


def test_a_single_image_for_a_batch_norm() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 6), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 4))
    with pytest.raises(
        pr.RunError, match=r"epoch 1, step 1: a batch norm cannot be trained on a single image .*drop_last"
    ):
        pr.fit(model, [(torch.randn(1, 3, 6, 6), torch.tensor([1]))], epochs=1)
