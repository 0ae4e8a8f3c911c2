"""What cannot be scored is refused in words, with the unit, batch or class concerned, and leaves no hooks behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import DataError, PrunusError, ScoreError
from prunus.scoring.metrics.rebuild import Elimination
from prunus.scoring.reader_inputs import collect_reader_inputs
from prunus.scoring.score import score
from tests import nets
from tests.scoring.toys import Scaled, batches, chain, graph_of, pictures


def hooks(graph: pr.ChannelGraph) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in graph.model.modules())


@pytest.mark.parametrize(
    ("metric", "options", "words"),
    [
        ("gds", {}, "there is no metric called 'gds': did you mean gsd"),
        ("gsd", {"rigde": 1}, r"gsd has no option 'rigde' \(did you mean ridge\?\); available: ridge, tap"),
        ("gsd:rho=1", {}, "gsd has no option 'rho'; available: ridge, tap"),
        (["gsd", "l1"], {"rho": 1}, "gsd, l1 has no option 'rho'"),
        ("gsd:ridge", {}, "must be NAME=VALUE, as in ridge=0.5, got 'ridge'"),
        ("gsd:ridge=0:ridge=1", {}, "the option ridge is given twice: '0' and '1'; give it once"),
        ("gsd:tap=reader:tap=reader", {}, "the option tap is given twice"),
        ("l1:tap=reader", {}, "no option 'tap'; available: none"),
        ("gsd:tap=here", {}, "tap must be reader or before_activation, got 'here'"),
        ("gsd", {"tap": "after"}, "tap must be one of reader, before_activation"),
        ("gsd:ridge=-1", {}, "ridge must be a number of at least 0, got -1"),
        ("gsd", {"ridge": float("nan")}, "ridge must be a number of at least 0"),
        ("gsd", {"ridge": "much"}, "ridge must be a number of at least 0"),
        (3, {}, "a metric must be a name or a function, got int"),
        ([], {}, "no metric is given"),
        (lambda c: [1.0, 2.0], {}, "must give unit a:out 4 scores, one per channel, got the shape"),
        (lambda c: c.moments.mean[0] * float("nan"), {}, "channel 0 of unit a:out the score nan"),
        (lambda c: 1 / (c.moments.mean.sum(0) * 0), {}, "channel 0 of unit a:out the score inf; a ridge above 0 keeps"),
        ("gsd", {"num_images": 1}, "at least 2 images"),
        ("mmd", {"task": "segmentation"}, "mmd is only for classification, with one class per image: use one of"),
    ],
)
def test_metrics_and_options(metric: Any, options: dict[str, Any], words: str) -> None:
    graph = graph_of(nets.Chain)
    with pytest.raises(PrunusError, match=words):
        score(graph, batches(), metric, **options)
    assert hooks(graph) == 0


def relabelled(function: Any) -> list[tuple[Any, Any]]:
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
        ([(x, y, y) for x, y in batches()], r"batch 0 must be images, a pair \(images, labels\) or a dict with both"),
        ([{"picture": x, "label": y} for x, y in batches()], "batch 0 is a dict with the keys"),
    ],
)
@pytest.mark.parametrize("metric", ["gsd", "taylor"])
def test_loaders_that_cannot_be_used(loader: list[Any], words: str, metric: str) -> None:
    graph = graph_of(nets.Chain)
    with pytest.raises(DataError, match=words):
        score(graph, loader, metric)
    assert hooks(graph) == 0


@pytest.mark.parametrize("metric", ["gsd", "dcp", "di", "mmd"])
@pytest.mark.parametrize("num_images", [None, 20])
def test_metrics_of_classes_say_that_labels_are_missing(metric: str, num_images: int | None) -> None:
    graph, images = graph_of(nets.Chain), [x for x, _ in batches()]
    for loader, words in (
        (torch.cat(images), "batch 0 has no labels, and accuracy needs them, as do .* metrics of classes"),
        ([(x,) for x in images], "batch 0 has no labels"),
        ([{"image": x} for x in images], r"batch 0 has no labels \(it is a dict with the keys \['image'\]\)"),
    ):
        with pytest.raises(DataError, match=words):
            score(graph, loader, metric, num_images)
    assert hooks(graph) == 0


def test_sources_without_images() -> None:
    graph, other = (pr.trace(chain(), pictures(1)) for _ in range(2))
    units = pr.repair_each(graph, pictures(30))
    for loader, metric, words in (
        (None, "gsd_reader", "gsd_reader cannot be computed without images"),
        (None, "rebuilt", "rebuilt cannot be computed without images"),
        (units, "gsd", "gsd cannot be computed without images"),
        ((b for b in batches()), "gsd", "read twice, not a generator"),
    ):
        with pytest.raises(PrunusError, match=words):
            score(graph, loader, metric, num_images=10)
    with pytest.raises(ScoreError, match="another graph"):
        score(other, units, "rebuilt")
    with pytest.raises(DataError, match="no images"):
        collect_reader_inputs(graph, pictures(1)[:0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("build", "layer", "metric", "words"),
    [
        (nets.Chain, "a", "gsd", "batch 0: activations of unit a:out that enter b are NaN"),
        (nets.Chain, "a", "mmd", "batch 0: activations of unit a:out that enter b are NaN"),
        (nets.Chain, "a", "fisher", r"batch 0: gradients at \w+ are NaN"),
        (nets.Concat, "b", "gsd", "batch 0: activations of unit b:out that enter c"),  # of a tensor that units share
    ],
)
def test_weights_that_are_not_finite(build: Any, layer: str, metric: str, words: str, bad: float) -> None:
    graph = graph_of(build)
    with torch.no_grad():
        graph.model.get_submodule(layer).weight[1] = bad
    with pytest.raises(ScoreError, match=words):
        score(graph, batches(), metric)
    assert hooks(graph) == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite_are_named(value: float) -> None:
    images, labels = torch.zeros(4, 3, 6, 6), torch.zeros(4, dtype=torch.int64)
    images[1, 0, 0, 0] = images[3, 2, 5, 5] = value
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    loader = [(torch.zeros(4, 3, 6, 6), labels), (images, labels)]
    graph = pr.trace(model, images[:1])
    for use in (
        lambda: pr.evaluate(model, loader),
        lambda: pr.score(graph, loader, metric="gsd"),
        lambda: pr.fit(model, loader, epochs=1),
    ):
        with pytest.raises(DataError, match="batch 1: 2 of 4 images have values that are NaN or infinite"):
            use()


@pytest.mark.parametrize("metric", ["gsd", "di"])
@pytest.mark.parametrize("counts", [[9], [9, 1], [1, 1, 1, 1, 1]])
def test_one_class_is_too_few(metric: str, counts: list[int]) -> None:
    graph = graph_of(nets.Chain)
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    images, _ = batches(len(labels), len(labels))[0]
    with pytest.raises(ScoreError, match="need at least two classes with two images each"):
        score(graph, [(images, labels)], metric)
    assert hooks(graph) == 0


class Folded(nn.Module):
    """Its second layer sees each image twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.cat([self.a(x), self.a(x)])).mean((2, 3))
        return self.fc(h[: len(x)])


def test_networks_and_moments_that_cannot_be_scored() -> None:
    with pytest.raises(ScoreError, match="fc is called with another number of images than the network"):
        score(graph_of(Folded), batches())
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), Scaled(6, 4, 3)).double().eval()
    with pytest.raises(ScoreError, match=r"no unit can be scored by its readers.*use a metric of activations"):
        score(pr.trace(model, pictures(1)), [pictures(40)], "rebuilt")
    moments = torch.full((3, 3), torch.nan, dtype=torch.float64)
    with pytest.raises(ScoreError, match="values that are not finite"):
        Elimination(torch.ones(1, 3, dtype=torch.float64), moments, torch.arange(3)[:, None])
