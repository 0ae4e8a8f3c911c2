"""The pass that gathers the readers' inputs: beside dense covariances, and shared by `score` and `repair_each`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as pr
from prunus.scoring import reader_inputs
from prunus.scoring.gram_sums import GramSums, KeptRows
from prunus.scoring.metrics import METRICS
from prunus.scoring.reader_inputs import collect_reader_inputs
from tests.scoring.toys import pictures


def network(width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), nn.ReLU(), nn.Conv2d(width, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)
    ).double()


def labelled(images: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return [(batch, torch.arange(len(batch)) % 3) for batch in torch.split(images, size)]


@torch.no_grad()
def test_sums_are_those_of_all_patches_whatever_the_batches() -> None:
    model, images = network(), pictures(130)  # three chunks of at most 64
    graph = pr.trace(model, images[:1])
    x = F.unfold(F.relu(model[0](images)), 3).transpose(1, 2)  # [130, 4, 36]
    held = torch.arange(130) % 5 == 4
    for size in (130, 50):
        seen = collect_reader_inputs(graph, labelled(images, size))
        found = seen.layers["2"]
        assert seen.num_images == 130 and found.rows == 130 * 4 and isinstance(found.fitted, GramSums)
        for part, rows in ((found.fitted, x[~held]), (found.held_out, x[held]), (found.whole, x)):
            want = np.cov(rows.reshape(-1, 36).numpy().T, bias=True)
            np.testing.assert_allclose(part.covariance(0), want, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(part.variances(0), np.diag(want), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_rows_are_kept_until_there_are_as_many_as_inputs() -> None:
    """The linear layer has 20 inputs and gets one row per image."""
    model = network()
    graph = pr.trace(model, pictures(1))
    few, many = (collect_reader_inputs(graph, pictures(count)).layers["5"] for count in (19, 20))
    assert isinstance(few.whole, KeptRows) and isinstance(many.whole, GramSums)
    want = np.cov(model[:5](pictures(19)).numpy().T, bias=True)
    np.testing.assert_allclose(few.whole.covariance(0), want, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_few_large_images_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 6 x 6 pixels fit here; what is gathered does not depend on it."""
    model, images, sizes = network(), pictures(30), []
    graph = pr.trace(model, images[:1])
    want = collect_reader_inputs(graph, images).layers["2"]
    monkeypatch.setattr(reader_inputs, "PIXELS", 2 * 3 * 6 * 6 + 1)
    with model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0]))):
        found = collect_reader_inputs(graph, images).layers["2"]
    assert sizes == [2] * 15
    np.testing.assert_allclose(found.fitted.covariance(0), want.fitted.covariance(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.held_out.covariance(0), want.held_out.covariance(0), rtol=1e-9, atol=1e-12)


def test_a_loader_and_a_repair_of_each_unit_give_the_same_scores() -> None:
    model, images = network(), pictures(90)
    graph = pr.trace(model, images[:1])
    units = pr.repair_each(graph, images)
    by_loader = pr.score(graph, labelled(images, 32), "rebuilt")
    by_units = pr.score(graph, units, "rebuilt")
    assert by_units.num_images == by_loader.num_images == 90 and list(by_units.values) == list(graph.units)
    by_tensor = pr.score(graph, images, "rebuilt")
    for unit, values in by_units.values.items():
        assert np.array_equal(values, by_loader.values[unit]) and np.array_equal(values, by_tensor.values[unit])


def test_scores_add_up_and_a_sample_is_taken() -> None:
    assert METRICS["rebuilt"].adds_up and [n for n, metric in METRICS.items() if metric.adds_up] == ["rebuilt"]
    graph = pr.trace(network(), pictures(1))
    assert pr.score(graph, labelled(pictures(90), 30), "rebuilt", num_map_images=40, seed=0).num_images == 40
    assert pr.score(graph, labelled(pictures(90), 30), "rebuilt", num_images=30, seed=0).num_images == 30


def test_the_callers_images_are_left_alone() -> None:
    """The network relus its input in place."""
    model = nn.Sequential(nn.ReLU(inplace=True), *network())
    images = pictures(30)
    before = images.clone()
    collect_reader_inputs(pr.trace(model, pictures(1)), images)
    assert torch.equal(images, before)
