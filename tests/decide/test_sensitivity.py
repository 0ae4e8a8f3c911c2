"""Sensitivity on real networks: racing beside exact, what units are ranked by, what is left as found, bad input."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import prunus as sc
from prunus.decide import trials as trial_evaluation
from prunus.decide.candidates import candidates
from prunus.decide.sensitivity import Sensitivity, sensitivity
from prunus.errors import DataError, DecideError
from prunus.score.scores import Scores
from prunus.tasks import partial_forward
from tests.decide.test_algorithm_1 import Mixed
from tests.decide.toys import answered, batches, drawn, measured, random_scores, seeded, without_weakest
from tests.nets import NETS
from tests.proof import assert_accuracy

EXAMPLE = torch.zeros(1, 3, 8, 8)


def case(images: int = 60, *sizes: int, seed: int = 0) -> tuple[nn.Module, sc.ChannelGraph, Scores, list[Any]]:
    model = seeded(Mixed, seed)
    inputs = drawn(EXAMPLE, images, seed)
    graph = sc.trace(model, EXAMPLE)
    return model, graph, random_scores(graph, seed), batches(inputs, answered(model, inputs), *(sizes or (25,)))


def values(found: Sensitivity) -> dict[str, float]:
    return {name: row.value for name, row in found.tried.items()}


def assert_rows(
    found: Sensitivity, graph: sc.ChannelGraph, scores: Scores, pairs: list[Any], images: int, at_least: int
) -> None:
    """Units that were tried on all images have the accuracy of the network with their weakest channels zeroed."""
    full = {name: row for name, row in found.tried.items() if row.num_images == images}
    assert len(full) >= at_least
    for name, row in full.items():
        assert row.accuracy is not None
        with sc.zeroed(graph, {name: without_weakest(graph.units[name], scores.values[name], row.channels)}):
            assert_accuracy(row.accuracy, graph.model, pairs)


def test_a_race_ends_near_the_exact_best() -> None:
    """Six units, the best two of them; 600 images in uneven batches."""
    gaps, shares = [], []
    for seed in range(2):
        model, graph, scores, pairs = case(600, 200, 77, seed=seed)
        exact = sensitivity(graph, scores, pairs, alpha=1, exact=True)
        raced = sensitivity(graph, scores, pairs, alpha=1, tolerance=0.01)
        assert raced.num_images == exact.num_images == 600
        for found in (raced, exact):  # in other batches and another order
            assert_accuracy(found.base_accuracy, model, pairs)
        truth = values(exact)
        gaps.append(sum(truth[n] for n in exact.ranked()[:2]) / 2 - sum(truth[n] for n in raced.ranked()[:2]) / 2)
        shares.append(sum(row.num_images for row in raced.tried.values()) / (600 * len(raced.tried)))
        assert all(row.num_images == 600 for row in exact.tried.values())
        assert {n: row.channels for n, row in raced.tried.items()} == {n: r.channels for n, r in exact.tried.items()}
    assert max(gaps) <= 0.01 and np.mean(shares) < 0.8


def test_images_that_tell_most_come_first() -> None:
    """Fifty images are near the border; a race of one chunk's worth of images would read just these."""
    logits = torch.tensor([[9.0, 0.0, 0.0], [1.0, 0.9, 0.0], [0.0, 5.0, 1.0], [2.0, 1.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 0])
    answers = trial_evaluation.answers_of(logits, labels)
    assert answers.right.tolist() == [1, 0, 0, 1]
    assert answers.margin == pytest.approx([9, -0.1, -5, 1])
    assert answers.loss == pytest.approx((logits.double().logsumexp(1) - logits[range(4), labels]).numpy())
    assert answers.telling("accuracy").tolist() == [1, 3, 2, 0]
    assert answers.telling("loss").tolist() == [2, 1, 3, 0]


@pytest.mark.parametrize("exact", [True, False])
def test_by_loss(exact: bool) -> None:
    model, graph, scores, pairs = case(60)
    found = sensitivity(graph, scores, pairs, measure="loss", exact=exact, tolerance=0.0)
    assert found.measure == "loss" and found.base_value == -found.base_loss
    assert found.base_loss == pytest.approx(measured(model, pairs)[1], rel=1e-5)
    for name, row in found.tried.items():
        keep = without_weakest(graph.units[name], scores.values[name], row.channels)
        with sc.zeroed(graph, {name: keep}):
            loss = measured(model, pairs)[1]
        if row.num_images == 60:
            assert row.value == pytest.approx(-loss, rel=1e-4) and row.loss == pytest.approx(loss, rel=1e-4)
    assert sum(row.num_images == 60 for row in found.tried.values()) >= (len(found.tried) if exact else 2)
    assert found.ranked() == sorted(found.tried, key=lambda n: -found.tried[n].value)


def test_by_a_users_own_measure() -> None:
    """Negative size of the logits; a one-shot generator of batches is read by every trial."""
    model, graph, scores, pairs = case(20)
    seen: list[int] = []

    def small(network: nn.Module, loader: Any) -> float:
        assert not network.training and not torch.is_grad_enabled()
        seen.append(sum(len(labels) for _, labels in loader))
        return -float(sum(network(images).abs().sum() for images, _ in pairs))

    found = sensitivity(graph, scores, iter(pairs), measure=small, alpha=1)
    assert found.measure == "small" and found.base_accuracy is None and found.base_loss is None
    assert seen == [20] * (1 + len(found.tried))
    for name, row in found.tried.items():
        keep = without_weakest(graph.units[name], scores.values[name], row.channels)
        with sc.zeroed(graph, {name: keep}), torch.no_grad():
            assert row.value == pytest.approx(small(model, pairs), rel=1e-5)
    assert found.ranked()[0] == max(found.tried, key=lambda n: found.tried[n].value)


@pytest.mark.parametrize("exact", [True, False])
def test_batches_that_are_too_large_for_memory(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    model, graph, scores, pairs = case(130, 100)
    whole = sensitivity(graph, scores, pairs, exact=exact)
    monkeypatch.setattr(partial_forward, "KEPT_BYTES", 150_000)  # some seven images
    assert 2 < partial_forward.Staged(graph).at_once < 20
    parts = sensitivity(graph, scores, pairs, exact=exact)
    assert parts.tried.keys() == whole.tried.keys()
    for found in (parts, whole):
        assert_accuracy(found.base_accuracy, model, pairs)
    for name, row in parts.tried.items():
        assert row.num_images == whole.tried[name].num_images
        assert (row.value, row.loss) == pytest.approx((whole.tried[name].value, whole.tried[name].loss), rel=1e-5)


def test_patterns() -> None:
    _, graph, scores, pairs = case(10)
    everything = {"conv1:in", "conv1:out", "down:in", "down:out", "group:out", "point:out"}
    assert set(candidates(graph)) == everything
    assert set(graph.units) - everything == {"fc1:out"}  # between linear layers: left alone unless named
    assert set(candidates(graph, exclude=["conv1*"])) == everything - {"conv1:in", "conv1:out"}
    assert set(candidates(graph, exclude=["*:in", "point"])) == {"conv1:out", "down:out", "group:out"}
    assert set(candidates(graph, only=["down", "fc1:out"])) == {"down:in", "down:out", "fc1:out"}
    assert set(candidates(graph, exclude=["*:out"], only=["down*"])) == {"down:in"}
    found = sensitivity(graph, scores, pairs, exclude=["conv1*", "group:out"], exact=True)
    assert set(found.tried) == {"down:in", "down:out", "point:out"}
    with pytest.raises(DecideError, match="no unit is left to prune"):
        sensitivity(graph, scores, pairs, exclude=["*"])
    residual = sc.trace(seeded(NETS["residual"].build), EXAMPLE)
    assert set(residual.units) - set(candidates(residual)) == {"fc:in"}  # the classifier's reading of the stream


def test_a_tensor_that_forward_creates() -> None:
    """`torch.tensor([...])` in forward is a constant of the graph, and no attribute of the model."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.b(torch.relu(self.a(x)) * torch.tensor([1.5]))
            return self.fc(x.relu().mean((2, 3))) + torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4])

    model = seeded(Constant)
    graph = sc.trace(model, EXAMPLE)
    scores = random_scores(graph)
    images = drawn(EXAMPLE, 60)
    pairs = batches(images, answered(model, images), 25)
    found = sensitivity(graph, scores, pairs, measure="loss", alpha=1, exact=True)
    assert set(found.tried) == set(graph.units) == {"a:out", "b:out"}
    for name, row in found.tried.items():
        with sc.zeroed(graph, {name: without_weakest(graph.units[name], scores.values[name], row.channels)}):
            assert row.value == pytest.approx(-measured(model, pairs)[1], rel=1e-5)


def test_several_inputs_and_dicts() -> None:
    for name in ("tuple_input", "dict_input"):
        model = seeded(NETS[name].build)
        images = drawn(NETS[name].example(), 130)
        graph = sc.trace(model, NETS[name].example())
        pairs = batches(images, answered(model, images), 40)
        exact = sensitivity(graph, random_scores(graph), pairs, exact=True, alpha=1)
        raced = sensitivity(graph, random_scores(graph), pairs, alpha=1, tolerance=0.0)
        assert set(exact.tried) == {"a:out", "b:out"}
        assert_rows(exact, graph, random_scores(graph), pairs, 130, at_least=2)
        assert_rows(raced, graph, random_scores(graph), pairs, 130, at_least=1)


def test_everything_is_left_as_found() -> None:
    model, graph, scores, pairs = case(60)
    model.train()
    model.bn.eval()
    model.stem.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    given = copy.deepcopy(pairs)
    torch.manual_seed(5)
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for words in ({}, {"exact": True}, {"split": "ratio", "ratios": (0.5,)}, {"cost": "latency"}):
        sensitivity(graph, scores, pairs, **words)  # type: ignore[arg-type]

    def broken(network: nn.Module, loader: Any) -> float:
        raise ZeroDivisionError

    def broken_later(network: nn.Module, loader: Any) -> float:
        calls.append(1)
        return 1 / (2 - len(calls))

    calls: list[int] = []
    for measure in (broken, broken_later):
        with pytest.raises(ZeroDivisionError):
            sensitivity(graph, scores, pairs, measure=measure)
    assert len(calls) == 2
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [m.training for m in model.modules()] == modes
    assert not model.stem.weight.requires_grad and model.conv1.weight.requires_grad
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002
    for (a, x), (b, y) in zip(pairs, given, strict=True):
        assert torch.equal(a, b) and torch.equal(x, y)


def test_the_same_again_and_as_json() -> None:
    _, graph, scores, pairs = case(200)
    one, two = (sensitivity(graph, scores, pairs, seed=3) for _ in range(2))
    assert one == two
    words = json.loads(json.dumps(one.to_dict()))
    assert words["tried"]["point:out"]["channels"] == one.tried["point:out"].channels
    assert words["num_images"] == 200 and words["alpha"] == 3.0


def test_progress_only_grows_and_ends() -> None:
    _, graph, scores, pairs = case(120)
    for words in ({"exact": True}, {}, {"measure": lambda model, loader: 1.0}):
        heard: list[tuple[int, int]] = []
        sensitivity(graph, scores, pairs, progress=lambda *news, heard=heard: heard.append(news), **words)  # type: ignore
        shares = [done / total for done, total in heard]
        assert len(heard) >= 6 and shares == sorted(shares) and shares[-1] == 1.0


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "words, complaint",
    [
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"alpha": -3.0}, "alpha must be above 0"),
        ({"alpha": float("nan")}, "alpha must be above 0"),
        ({"alpha": float("inf")}, "alpha must be above 0"),
        ({"alpha": 1e-4}, "no unit can lose a whole granule within its floor"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"k": 7}, "6; got 7"),
        ({"measure": "acuracy"}, "measure must be one of accuracy, loss; got 'acuracy' .did you mean accuracy"),
        ({"split": "algoritm1"}, "no split called 'algoritm1': did you mean algorithm1"),
        ({"split": "uniform"}, "ranks units for the splits"),
        ({"alfa": 3.0}, "no setting called 'alfa': did you mean alpha"),
        ({"cost": "watts"}, "no cost called 'watts'.*Available: latency, macs, params"),
        ({"confidence": 1.5}, "confidence must be"),
        ({"split": "ratio", "ratios": (0.5, 1.0)}, "ratios are fractions removed, above 0 and below 1; got 1.0"),
        ({"round_to": 1000}, "no unit can lose a whole granule within its floor; lower round_to"),
        ({"round_to": 0}, "round_to must be at least 1, got 0"),
    ],
)
def test_values_out_of_range(words: dict[str, Any], complaint: str) -> None:
    _, graph, scores, pairs = case(10)
    with pytest.raises(DecideError, match=complaint):
        sensitivity(graph, scores, pairs, **words)


@pytest.mark.parametrize("exact", [True, False])
def test_held_out_sets_that_cannot_be_used(exact: bool) -> None:
    _, graph, scores, pairs = case(10)
    images, labels = pairs[0]
    for loader, complaint in (
        ([], "the held-out loader gave no images"),
        ([(images[:0], labels[:0])], "the held-out loader gave no images"),
        ([images], r"batch 0 must be a pair \(images, labels\) or a dict with both"),
        ([{"image": images}], "none of them is label or labels"),
        ([(images, labels.float())], "labels must be integers"),
        ([(images, labels + 5)], "the model has 5 classes"),
        ([(images, torch.eye(5, dtype=torch.long)[labels])], r"labels must have the shape \[N\]"),
    ):
        with pytest.raises(DataError, match=complaint):
            sensitivity(graph, scores, loader, exact=exact)


class Shuffled:
    """Another order each time it is read."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels, self.turn = images, labels, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.turn += 1
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(self.turn))
        return iter([(self.images[part], self.labels[part]) for part in order.split(50)])


def test_a_loader_that_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits in memory is read once, so order does not matter; what does not fit must come in the same order."""
    model, graph, scores, _ = case(10)
    images = drawn(EXAMPLE, 300)
    labels = answered(model, images)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    exact = sensitivity(graph, scores, loader, exact=True)
    raced = sensitivity(graph, scores, loader, tolerance=0.0)
    pairs = batches(images, labels, 64)
    assert_rows(exact, graph, scores, pairs, 300, at_least=6)
    assert_rows(raced, graph, scores, pairs, 300, at_least=2)
    monkeypatch.setattr(trial_evaluation, "KEPT_BYTES", 1000)
    again = sensitivity(graph, scores, pairs, tolerance=0.0)
    assert values(again).keys() == values(raced).keys()
    with pytest.raises(DataError, match=r"in a different order each time.*turn shuffling off, or pass exact=True"):
        sensitivity(graph, scores, Shuffled(images, labels))
