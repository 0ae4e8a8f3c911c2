"""Trials on held-out images: racing beside exact, what units are ranked by, and loaders of all kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import prunus as pr
from prunus.deciding import trials
from prunus.deciding.sensitivity import Sensitivity, sensitivity
from prunus.deciding.trials import CHUNKS, SMALLEST_CHUNK, race
from prunus.errors import DataError
from prunus.scoring.scores import Scores
from prunus.tasks import TASKS, partial_forward
from tests.deciding.toys import Mixed, answered, batches, drawn, measured, mixed, random_scores, seeded, without_weakest
from tests.nets import NETS
from tests.proof import assert_accuracy


def assert_rows(
    found: Sensitivity, graph: pr.ChannelGraph, scores: Scores, pairs: list[Any], images: int, at_least: int
) -> None:
    """Units that were tried on all images have the accuracy of the network with their weakest channels zeroed."""
    full = {name: row for name, row in found.tried.items() if row.num_images == images}
    assert len(full) >= at_least
    for name, row in full.items():
        with pr.zeroed(graph, {name: without_weakest(graph.units[name], scores.values[name], row.channels)}):
            assert_accuracy(row.accuracy, graph.model, pairs)


def test_a_race_ends_near_the_exact_best() -> None:
    """Six units, the best two of them; 600 images in uneven batches."""
    gaps, shares = [], []
    for seed in range(2):
        model, graph, scores, pairs = mixed(600, 200, 77, seed=seed)
        exact = sensitivity(graph, scores, pairs, alpha=1, exact=True)
        raced = sensitivity(graph, scores, pairs, alpha=1, tolerance=0.01)
        assert raced.num_images == exact.num_images == 600
        for found in (raced, exact):  # in other batches and another order
            assert_accuracy(found.base_accuracy, model, pairs)
        truth = {name: row.value for name, row in exact.tried.items()}
        gaps.append(sum(truth[n] for n in exact.ranked()[:2]) / 2 - sum(truth[n] for n in raced.ranked()[:2]) / 2)
        shares.append(sum(row.num_images for row in raced.tried.values()) / (600 * len(raced.tried)))
        assert all(row.num_images == 600 for row in exact.tried.values())
        assert {n: row.channels for n, row in raced.tried.items()} == {n: r.channels for n, r in exact.tried.items()}
    assert max(gaps) <= 0.01 and np.mean(shares) < 0.8


@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_images_that_tell_most_come_first(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those near the border between classes; by the loss, those with a high loss."""
    model, graph, scores, pairs = mixed(120)
    orders: list[Any] = []

    def noted(base: Any, order: Any, *args: Any, **kwargs: Any) -> Any:
        orders.append(order)
        return race(base, order, *args, **kwargs)

    race = trials.race
    monkeypatch.setattr(trials, "race", noted)
    sensitivity(graph, scores, pairs, measure=measure)
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in pairs])
    labels = torch.cat([y for _, y in pairs])
    others = logits.clone()
    others[range(120), labels] = -torch.inf
    margin = logits[range(120), labels] - others.max(1).values
    margins = TASKS["classification"].margins
    assert margins is not None and torch.equal(margins(logits, labels), margin)
    telling = margin.abs() if measure == "accuracy" else -F.cross_entropy(logits, labels, reduction="none")
    assert np.allclose(np.diff(telling[torch.from_numpy(orders[0])].numpy()).clip(max=0), 0, atol=1e-5)


def test_a_race_by_loss() -> None:
    model, graph, scores, pairs = mixed(60)
    found = sensitivity(graph, scores, pairs, measure="loss", tolerance=0.0)
    assert found.measure == "loss" and found.base_value == pytest.approx(-found.base_loss, rel=1e-6)  # type: ignore[operator]
    assert found.base_loss == pytest.approx(measured(model, pairs)[1], rel=1e-5)
    full = {name: row for name, row in found.tried.items() if row.num_images == 60}
    assert len(full) >= 2
    for name, row in full.items():
        with pr.zeroed(graph, {name: without_weakest(graph.units[name], scores.values[name], row.channels)}):
            loss = measured(model, pairs)[1]
        assert row.value == pytest.approx(-loss, rel=1e-4) and row.loss == pytest.approx(loss, rel=1e-4)
    assert found.ranked() == sorted(found.tried, key=lambda n: -found.tried[n].value)


def test_by_a_user_provided_measure() -> None:
    """Negative size of the logits; a one-shot generator of batches is read by every trial."""
    model, graph, scores, pairs = mixed(20)
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
        with pr.zeroed(graph, {name: keep}), torch.no_grad():
            assert row.value == pytest.approx(small(model, pairs), rel=1e-5)


def minus_loss(network: nn.Module, loader: Any) -> float:
    return -measured(network, loader)[1]


@pytest.mark.parametrize("how", [{"exact": True}, {"tolerance": 0.0}, {"measure": minus_loss}])
def test_a_user_provided_repair_is_in_force_when_a_unit_is_tried(how: dict[str, Any]) -> None:
    """Here: what is left of the readers' weights with the other sign."""
    model, graph, scores, pairs = mixed(60)

    @contextmanager
    def turned(unit: str, kept: Sequence[int]) -> Iterator[None]:
        weights = [model.get_submodule(reader.module).weight.detach() for reader in graph.units[unit].readers]
        with pr.zeroed(graph, {unit: kept}):
            for weight in weights:
                weight.mul_(-1)
            yield
        for weight in weights:
            weight.mul_(-1)

    found = sensitivity(graph, scores, pairs, alpha=1, repair=turned, **how)
    plain = sensitivity(graph, scores, pairs, alpha=1, **how)
    assert (found.repair, plain.repair) == ("own", "none") and found.base_value == plain.base_value
    for name, row in found.tried.items():
        if row.num_images in (0, 60):  # a race need not show all images to all units
            with turned(name, without_weakest(graph.units[name], scores.values[name], row.channels)):
                if found.measure == "accuracy":
                    assert_accuracy(row.value, model, pairs)
                else:
                    assert row.value == pytest.approx(-measured(model, pairs)[1], rel=1e-4)
    assert sum(row.num_images in (0, 60) for row in found.tried.values()) >= 2


@pytest.mark.parametrize("exact", [True, False])
def test_batches_that_are_too_large_for_memory(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    model, graph, scores, pairs = mixed(70, 50)
    whole = sensitivity(graph, scores, pairs, exact=exact)
    monkeypatch.setattr(partial_forward, "KEPT_BYTES", 150_000)  # some seven images
    assert 2 < partial_forward.PartialForward(graph).at_once < 20
    parts = sensitivity(graph, scores, pairs, exact=exact)
    assert parts.tried.keys() == whole.tried.keys()
    for found in (parts, whole):
        assert_accuracy(found.base_accuracy, model, pairs)
    for name, row in parts.tried.items():
        assert row.num_images == whole.tried[name].num_images
        assert (row.value, row.loss) == pytest.approx((whole.tried[name].value, whole.tried[name].loss), rel=1e-5)


@pytest.mark.parametrize("name", ["tuple_input", "dict_input"])
def test_several_inputs_and_dicts(name: str) -> None:
    model = seeded(NETS[name].build)
    images = drawn(NETS[name].example(), 130)
    graph = pr.trace(model, NETS[name].example())
    scores, pairs = random_scores(graph), batches(images, answered(model, images), 40)
    for exact in (True, False):
        found = sensitivity(graph, scores, pairs, exact=exact, alpha=1, tolerance=0.0)
        assert set(found.tried) == {"a:out", "b:out"}
        assert_rows(found, graph, scores, pairs, 130, at_least=1 + exact)


def test_a_race_over_images_of_two_sizes_and_an_empty_batch() -> None:
    """They cannot be put into one batch. By another task: the quality is minus the distance to a number."""
    model, graph, scores, _ = mixed(10)
    sizes = [drawn(torch.zeros(1, 3, size, size), 70, seed=size) for size in (8, 12)]
    pairs = [(images, torch.randn(70)) for images in sizes] + [(sizes[0][:0], torch.zeros(0))]
    task = pr.Task(
        loss=lambda out, y: (out[:, 0] - y).abs().mean(), quality=lambda out, y: -(out[:, 0] - y).abs(), name="near"
    )
    exact = sensitivity(graph, scores, pairs, task=task, exact=True)
    raced = sensitivity(graph, scores, pairs, task=task, tolerance=0.0)
    assert raced.num_images == exact.num_images == 140
    with torch.no_grad():
        near = torch.cat([-(model(x)[:, 0] - y).abs() for x, y in pairs[:2]]).mean()
    assert raced.base_value == pytest.approx(float(near), rel=1e-5) == pytest.approx(exact.base_value, rel=1e-5)
    full = [name for name, row in raced.tried.items() if row.num_images == 140]
    assert full
    for name in full:
        one, other = raced.tried[name], exact.tried[name]
        assert (one.value, one.loss) == pytest.approx((other.value, other.loss), rel=1e-4)


def test_progress_only_grows_and_ends() -> None:
    _, graph, scores, pairs = mixed(120)
    for how in ({"exact": True}, {}, {"measure": lambda model, loader: 1.0}):
        heard: list[tuple[int, int]] = []
        sensitivity(graph, scores, pairs, progress=lambda *news, heard=heard: heard.append(news), **how)  # type: ignore
        shares = [done / total for done, total in heard]
        assert len(heard) >= 6 and shares == sorted(shares) and shares[-1] == 1.0


class Shuffled:
    """Another order each time it is read."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels, self.turn = images, labels, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.turn += 1
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(self.turn))
        return iter([(self.images[part], self.labels[part]) for part in order.split(50)])


class Steady(Shuffled):
    """The same order each time."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.turn = 0
        return super().__iter__()


def test_loaders_that_shuffle_and_loaders_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits in memory is read once, so order does not matter; what does not fit must come in the same order."""
    model, graph, scores, _ = mixed(10)
    images = drawn(Mixed.example, 300)
    labels = answered(model, images)
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    exact = sensitivity(graph, scores, loader, exact=True)
    raced = sensitivity(graph, scores, loader, tolerance=0.0)
    pairs = batches(images, labels, 64)
    assert_rows(exact, graph, scores, pairs, 300, at_least=6)
    assert_rows(raced, graph, scores, pairs, 300, at_least=2)
    monkeypatch.setattr(trials, "KEPT_BYTES", 1000)
    assert_rows(sensitivity(graph, scores, Steady(images, labels), tolerance=0.0), graph, scores, pairs, 300, 2)
    with pytest.raises(DataError, match=r"in a different order each time.*turn shuffling off, or pass exact=True"):
        sensitivity(graph, scores, Shuffled(images, labels))


# -- racing

Table = npt.NDArray[np.float64]
IMAGES, UNITS, K = 2000, 54, 18


class Asked:
    """Answers from a table [units, images], and notes what was asked."""

    def __init__(self, table: Table) -> None:
        self.table, self.answers = table, 0
        self.calls: list[list[int]] = []

    def __call__(self, units: Sequence[int], images: npt.NDArray[np.int64]) -> Table:
        assert (np.diff(images) > 0).all()
        self.answers += len(units) * len(images)
        self.calls.append(list(units))
        return self.table[np.ix_(units, images)]

    @property
    def share(self) -> float:
        return self.answers / self.table.size


def raced_network(seed: int, images: int = IMAGES, units: int = UNITS) -> tuple[Table, Table, Table]:
    """base [images], its margins and the units' table: as ResNet-56, most units flip only what is near the border, and
    a dozen do harm everywhere."""
    draw = np.random.default_rng(seed)
    margin = draw.gamma(2.0, 5.0, images)
    base = (draw.random(images) < 1 / (1 + np.exp(-0.7 * margin))).astype(float)
    reach = draw.uniform(0.4, 1.2, units)
    harm = np.where(np.arange(units) < 12, draw.uniform(0.05, 0.6, units), 0.0)
    chance = 0.45 * np.exp(-margin / reach[:, None]) + harm[:, None] * (base == 1)
    flipped = draw.random((units, images)) < np.minimum(chance, 1)
    mixed = draw.permutation(units)
    return base, margin, np.where(flipped, 1 - base, base)[mixed]


def run(
    base: Table, margin: Table, ask: Asked, k: int = K, *, tolerance: float = 5e-4, seed: int = 0
) -> tuple[Table, npt.NDArray[np.int64]]:
    order = np.argsort(margin, kind="stable")
    return race(base, order, ask, len(ask.table), k, confidence=0.95, tolerance=tolerance, seed=seed)


def best(values: Table, k: int = K) -> npt.NDArray[np.int64]:
    return np.argsort(-values, kind="stable")[:k]


def test_it_finds_units_as_good_as_the_best_and_looks_at_few_images() -> None:
    shortfall, shares = [], []
    for seed in range(20):
        base, margin, table = raced_network(seed)
        ask = Asked(table)
        values, seen = run(base, margin, ask, seed=seed)
        exact = table.mean(axis=1)
        shortfall.append(exact[best(exact)].mean() - exact[best(values)].mean())
        shares.append(ask.share)
        assert sum(seen) == ask.answers and (values <= 1).all()
        assert np.abs(values - exact)[best(values)].max() < 0.005  # those found are near the truth
    assert sum(miss <= 5e-4 for miss in shortfall) >= 19  # at 95% confidence
    assert max(shortfall) <= 1e-3 and np.mean(shares) < 0.25


def test_hopeless_units_drop_out_at_once_and_do_not_come_back() -> None:
    base, margin, table = raced_network(1)
    table[:5] = 1 - base  # always wrong where the network is right
    ask = Asked(table)
    values, seen = run(base, margin, ask, tolerance=0.0)
    first = max(SMALLEST_CHUNK, IMAGES // CHUNKS)
    assert list(seen[:5]) == [first] * 5
    assert set(best(values)).isdisjoint(range(5))
    assert all(set(later) <= set(earlier) for earlier, later in zip(ask.calls, ask.calls[1:], strict=False))
    assert all(not set(range(5)) & set(call) for call in ask.calls[1:])


def test_a_unit_that_lost_early_is_not_among_the_best_when_all_others_sink_later() -> None:
    """Units 2 and 3 are far behind on the first chunk and fine afterwards; 0 and 1 the other way round."""
    images = 1000
    base = np.ones(images)
    table = np.ones((4, images))
    table[2:, :50] = 0
    table[:2, 300:] = 0
    ask = Asked(table)
    values, seen = race(base, np.arange(images), ask, 4, 2, confidence=0.95, tolerance=0.0, seed=0)
    assert set(best(values, 2)) == {0, 1}  # what was decided stays decided: they were not looked at again
    assert seen[2] < images and values[2] <= values[:2].min()


def test_zero_tolerance_reads_on_until_the_best_are_certain_in_the_same_way_each_time() -> None:
    base, margin, table = raced_network(5, images=400, units=12)
    ask, again, loose = Asked(table), Asked(table), Asked(table)
    values, seen = run(base, margin, ask, 4, tolerance=0.0)
    same = run(base, margin, again, 4, tolerance=0.0)
    assert (same[0] == values).all() and (same[1] == seen).all()
    run(base, margin, loose, 4, tolerance=0.01)
    assert ask.answers > loose.answers
    exact = table.mean(axis=1)
    assert exact[best(values, 4)].mean() == pytest.approx(exact[best(exact, 4)].mean(), abs=1e-12)


def test_few_images_are_all_read_and_as_many_winners_as_units_need_no_race() -> None:
    base, margin, table = raced_network(2, images=SMALLEST_CHUNK - 1, units=7)
    ask = Asked(table)
    values, seen = run(base, margin, ask, 3)
    assert ask.share == 1 and set(seen.tolist()) == {SMALLEST_CHUNK - 1}
    assert values == pytest.approx(table.mean(axis=1), abs=1e-12)
    base, margin, table = raced_network(2, units=6)
    ask = Asked(table)
    run(base, margin, ask, 6)
    assert len(ask.calls) == 1
