"""What cannot be scored is refused in words, with the unit, batch or class concerned."""

from __future__ import annotations

import re
from typing import Any

import click
import numpy as np
import pytest
import torch
import typer
from torch import Tensor

import prunus as sc
from prunus.cli import build
from prunus.errors import DataError, PrunusError, ScoreError
from prunus.score.collect import collect
from prunus.score.score import score
from tests import nets
from tests.score.toys import batches, settled

Batches = list[tuple[Any, Any]]


def graph_of() -> sc.ChannelGraph:
    return sc.trace(settled(nets.Chain()), torch.zeros(1, 3, 8, 8, dtype=torch.float64))


def hooks(graph: sc.ChannelGraph) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in graph.model.modules())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("metric", ["gsd", "mmd"])
def test_nan_and_infinite_activations_name_unit_and_batch(bad: float, metric: str) -> None:
    graph, images = graph_of(), batches()
    with torch.no_grad():
        graph.model.get_submodule("a").weight[1] = bad
    with pytest.raises(ScoreError, match=r"batch 0: activations of unit a:out that enter b are NaN"):
        score(graph, images, metric)
    assert hooks(graph) == 0


def test_nan_gradients_name_layer_and_batch() -> None:
    graph, images = graph_of(), batches()
    with torch.no_grad():
        graph.model.get_submodule("a").weight[1] = float("nan")
    with pytest.raises(ScoreError, match=r"batch 0: gradients at \w+ are NaN"):
        score(graph, images, "fisher")


def test_a_nan_in_one_unit_of_a_shared_tensor_is_found() -> None:
    graph = sc.trace(settled(nets.Concat()), torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    with torch.no_grad():
        graph.model.get_submodule("b").weight[2] = float("nan")
    with pytest.raises(ScoreError, match="batch 0: activations of unit b:out that enter c"):
        score(graph, batches())


def relabelled(function: Any) -> Batches:
    return [(x, function(y)) for x, y in batches()]


@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ([], "nothing to score on: the loader gave no images"),
        ([(torch.zeros(0, 3, 8, 8, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))], "gave no images"),
        (relabelled(lambda y: y.double()), "batch 0: labels must be integers"),
        (relabelled(lambda y: y[:, None]), r"batch 0: labels must have the shape \[N\]"),
        (relabelled(lambda y: y + 1), "batch 0 has labels from 1 to 5, but the model has 5 classes"),
        (relabelled(lambda y: y - 1), "batch 0 has labels from -1 to 3"),
        (relabelled(lambda y: y[:-1]), "batch 0: for 6 labels the model must return logits"),
        (relabelled(lambda y: y.tolist()), "labels must be a tensor"),
        ([(x, y, y) for x, y in batches()], "batch 0 must be a pair"),
        ([{"picture": x, "label": y} for x, y in batches()], "batch 0 is a dict with the keys"),
    ],
)
@pytest.mark.parametrize("metric", ["gsd", "taylor"])
def test_loaders_that_cannot_be_used(loader: Batches, words: str, metric: str) -> None:
    graph = graph_of()
    with pytest.raises(DataError, match=words):
        score(graph, loader, metric)
    assert hooks(graph) == 0


def with_classes(counts: list[int]) -> list[tuple[Tensor, Tensor]]:
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    x, _ = batches(len(labels), len(labels))[0]
    return [(x[i : i + 6], labels[i : i + 6]) for i in range(0, len(labels), 6)]


def test_small_classes_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of()
    images = with_classes([8, 0, 6, 1, 5])
    found = collect(graph, images)
    assert found.classes == (0, 2, 4)
    assert "left out of the scores: class 1 without images, class 3 with one image" in caplog.text
    without = [(x[y != 3], y[y != 3]) for x, y in images]
    for metric in ("gsd", "ttest", "di", "mmd"):
        a, b = score(graph, images, metric), score(graph, without, metric)
        np.testing.assert_allclose(a.values["a:out"], b.values["a:out"], rtol=1e-9)


@pytest.mark.parametrize("metric", ["gsd", "di"])
@pytest.mark.parametrize("counts", [[9], [9, 1], [1, 1, 1, 1, 1]])
def test_one_class_is_too_few(metric: str, counts: list[int]) -> None:
    graph = graph_of()
    with pytest.raises(ScoreError, match="need at least two classes with two images each"):
        score(graph, with_classes(counts), metric)
    assert hooks(graph) == 0


def test_an_error_of_ours_is_always_a_prunus_error() -> None:
    graph = graph_of()
    with pytest.raises(PrunusError, match="gsd_reader cannot be computed without images"):
        score(graph)
    with pytest.raises(PrunusError, match="read twice, not a generator"):
        score(graph, (b for b in batches()), num_images=10)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite_are_named(value: float) -> None:
    images, labels = torch.zeros(4, 3, 6, 6), torch.zeros(4, dtype=torch.int64)
    images[1, 0, 0, 0] = images[3, 2, 5, 5] = value
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    complaint = "batch 1: 2 of 4 images have values that are NaN or infinite"
    loader = [(torch.zeros(4, 3, 6, 6), labels), (images, labels)]
    with pytest.raises(DataError, match=complaint):
        sc.evaluate(model, loader)
    with pytest.raises(DataError, match=complaint):
        sc.score(sc.trace(model, images[:1]), loader, metric="gsd")
    with pytest.raises(DataError, match=complaint):
        sc.fit(model, loader, epochs=1)


@pytest.mark.parametrize("ridge", [-1, float("nan"), "much"])
def test_a_ridge_must_not_be_negative(ridge: object) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    graph = sc.trace(model, torch.zeros(1, 3, 6, 6))
    loader = [(torch.rand(4, 3, 6, 6), torch.tensor([0, 1, 0, 1]))]
    with pytest.raises(ScoreError, match="ridge must be a number of at least 0"):
        sc.score(graph, loader, metric="gsd", ridge=ridge)
    if isinstance(ridge, int):
        with pytest.raises(ScoreError, match="ridge must be a number of at least 0, got -1"):
            sc.score(graph, loader, metric="gsd:ridge=-1")


def test_di_warns_of_fewer_images_than_pixels(caplog: pytest.LogCaptureFixture) -> None:
    """With fewer images than pixels, any maps separate the five classes perfectly: DI is C - 1 = 4 for all channels."""
    graph = graph_of()  # a:out has maps of 8x8 = 64 pixels, b:out has smaller ones
    few = score(graph, batches(30), "di", rho=1e-9)
    np.testing.assert_allclose(few.values["a:out"], 4, atol=1e-3)
    assert (few.values["b:out"] < 3.9).all()
    assert "di: 30 images are too few for 1 of 2 units" in caplog.text and "(a:out: 64)" in caplog.text
    assert "Use clearly more than 64 images (in Python num_map_images; --num-map-images of " in caplog.text
    caplog.clear()
    assert (score(graph, batches(200), "di", rho=1e-9).values["a:out"] < 3.9).all()
    score(graph, batches(30), "mmd")  # it does not saturate
    assert not caplog.text


def test_the_verbs_have_the_options_that_the_warning_of_di_names(caplog: pytest.LogCaptureFixture) -> None:
    score(graph_of(), batches(30), "di")
    root: Any = typer.main.get_command(build())
    named = re.findall(r"(--[a-z-]+) of `prunus ([a-z ]+)`(?: and `([a-z ]+)`)?", caplog.text)
    assert len(named) == 2
    for option, *verbs in named:
        for verb in filter(None, verbs):
            command = root
            for word in verb.split():
                command = command.get_command(click.Context(command), word)
            assert option in [name for parameter in command.params for name in parameter.opts], (verb, option)


@pytest.mark.parametrize("metric", ["gsd", "dcp", "di", "mmd"])
@pytest.mark.parametrize("num_images", [None, 20])
def test_metrics_of_classes_say_that_labels_are_missing(metric: str, num_images: int | None) -> None:
    graph, pictures = graph_of(), torch.cat([x for x, _ in batches()])
    pairs = r"batch 0 must be a pair \(images, labels\) or a dict with both, but is a Tensor of \d+"
    with pytest.raises(DataError, match=pairs):
        score(graph, pictures, metric, num_images)
    with pytest.raises(DataError, match=r"batch 0 must be a pair .* but is a tuple of 1"):
        score(graph, [(x,) for x, _ in batches()], metric, num_images)
    with pytest.raises(DataError, match=r"batch 0 is a dict with the keys \['image'\], but none of them is label"):
        score(graph, [{"image": x} for x, _ in batches()], metric, num_images)
    assert hooks(graph) == 0
