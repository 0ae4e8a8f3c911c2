"""Class moments of dense and multi-label data against plain loops over pixels and labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import prunus as sc
from prunus.score.choice import choose_metrics, without_classes
from prunus.score.metrics import METRICS
from tests.score.toys import entering
from tests.tasks.nets import UNet, Wrapped, squares, sums, tags


def naive_gsd(samples: list[np.ndarray], ridge: float = 0.05) -> float:
    """G-SD of one channel from the samples of each class; paper Eqn. 1."""
    return float(
        np.mean(
            [
                _divergence(own, np.concatenate([*samples[:c], *samples[c + 1 :]]), ridge)
                for c, own in enumerate(samples)
            ]
        )
    )


def _divergence(own: np.ndarray, rest: np.ndarray, ridge: float) -> float:
    v, w = own.var(), rest.var()
    return float(
        0.5 * (v / (w + ridge) + w / (v + ridge)) + 0.5 * (own.mean() - rest.mean()) ** 2 / (v + w + ridge) - 1
    )


def test_every_pixel_is_a_sample_of_its_class() -> None:
    """At the resolution of the labels: the samples of a class are the activations at its pixels."""
    torch.manual_seed(0)
    model, batches = UNet().eval(), squares()
    for _, y in batches:
        y[:, 0] = 255  # ignored
    graph = sc.trace(model, torch.zeros(1, 1, 12, 12))
    found = sc.score(graph, batches, metric="gsd", task="segmentation")
    x, y = entering(model, "head", batches), torch.cat([y for _, y in batches]).numpy()
    for channel in range(3):
        values = x[:, channel].numpy().astype(np.float64)
        want = naive_gsd([values[y == c] for c in range(3)])
        assert found.values["up.0:out"][channel] == pytest.approx(want, rel=1e-6)


def test_a_position_of_a_smaller_map_stands_for_all_pixels_of_its_area() -> None:
    torch.manual_seed(1)
    model, batches = UNet(aux=True).eval(), squares()
    graph = sc.trace(model, torch.zeros(1, 1, 12, 12))
    found = sc.collect(graph, batches, task="segmentation")
    taps = [tap for tap in found.units["middle.0:out"] if tap.readers[0].module == "aux"]
    x, y = entering(model, "aux", batches), torch.cat([y for _, y in batches]).numpy()
    large = x.repeat_interleave(2, 2).repeat_interleave(2, 3).numpy().astype(np.float64)  # [N, C, 12, 12]
    for c in range(3):
        values = large.transpose(1, 0, 2, 3)[:, y == c]  # [C, pixels]
        assert taps[0].moments.count[c].item() == pytest.approx((y == c).sum())
        assert taps[0].moments.mean[c].numpy() == pytest.approx(values.mean(1), rel=1e-6)
        assert taps[0].moments.variance[c].numpy() == pytest.approx(values.var(1), rel=1e-5)
    assert found.num_images == 48


def test_each_label_is_a_problem_of_its_own() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 6), nn.Flatten()).eval()
    batches = tags()
    graph = sc.trace(net, torch.zeros(1, 1, 8, 8))
    found = sc.score(graph, batches, metric="gsd", task="multilabel")
    x = entering(net, "2", batches).numpy().astype(np.float64)
    y = torch.cat([y for _, y in batches]).numpy()
    for channel in range(6):
        values = x[:, channel]
        parts = [_divergence(values[y[:, i] == 1].ravel(), values[y[:, i] == 0].ravel(), 0.05) for i in range(3)]
        assert found.values["0:out"][channel] == pytest.approx(np.mean(parts), rel=1e-6)
    energy = sc.score(graph, batches, metric="act_variance", task="multilabel")
    assert energy.values["0:out"] == pytest.approx(x.transpose(1, 0, 2, 3).reshape(6, -1).var(1), rel=1e-6)


def test_numbers_are_binned_if_asked() -> None:
    torch.manual_seed(3)
    batches = sums()
    graph = sc.trace(Wrapped().eval(), tuple(x[:1] for x in batches[0][0]))
    with pytest.raises(sc.ScoreError, match=r"regression\(bins"):
        sc.score(graph, batches, metric="gsd", task="regression")
    numbers = torch.cat([y for _, y in batches])
    border = float(numbers.median())
    found = sc.collect(graph, batches, task=sc.regression(bins=[border]))
    assert found.classes == (0, 1)
    tap = found.units["one:out"][0]
    assert tap.moments.num_images.tolist() == [int((numbers <= border).sum()), int((numbers > border).sum())]


def test_what_a_task_cannot_score_is_left_out_of_all(caplog: pytest.LogCaptureFixture) -> None:
    batches = sums()
    graph = sc.trace(Wrapped().eval(), tuple(x[:1] for x in batches[0][0]))
    found = sc.score(graph, batches, "all", task="regression", seed=0)
    assert {"l1", "reader_energy", "rebuilt", "taylor"} <= set(found)
    assert not {"gsd", "gsd_reader", "di", "mmd"} & set(found)
    assert "gsd" in caplog.text


def test_taylor_follows_the_loss_of_the_task() -> None:
    torch.manual_seed(4)
    batches = sums()[:1]
    model = Wrapped().eval()
    graph = sc.trace(model, tuple(x[:1] for x in batches[0][0]))
    found = sc.score(graph, batches, metric="taylor", task="regression")
    inputs, labels = batches[0]
    loss = (model(*inputs).logits[:, 0] - labels).square().mean()
    (gradient,) = torch.autograd.grad(loss, [model.one.weight])
    want = (gradient * model.one.weight).abs().flatten(1).sum(1).detach().numpy()
    assert found.values["one:out"] == pytest.approx(want, rel=1e-4)


def test_metrics_of_maps_without_classes_serve_every_task() -> None:
    torch.manual_seed(4)
    model, batches = UNet().eval(), squares()
    graph = sc.trace(model, batches[0][0][:1])
    found = sc.score(graph, batches, ["hrank", "chip"], task="segmentation", num_map_images=None)
    maps, name = entering(model, "head", batches).numpy(), "up.0:out"
    # one of 48 images may be on the border of a rank on another processor
    assert found["hrank"].values[name] == pytest.approx(np.linalg.matrix_rank(maps).mean(0), abs=1.01 / len(maps))
    rows = maps.astype(np.float64).reshape(*maps.shape[:2], -1)
    first = np.delete(rows, 0, axis=1)
    lost = [np.linalg.norm(a, "nuc") - np.linalg.norm(b, "nuc") for a, b in zip(rows, first, strict=True)]
    assert found["chip"].values[name][0] == pytest.approx(np.mean(lost), rel=1e-5)
    with pytest.raises(sc.ScoreError, match="mmd: only for classification"):
        sc.score(graph, batches, ["hrank", "mmd"], task="segmentation")


def test_the_reasons_why_metrics_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    every = choose_metrics(list(METRICS))
    kept = {one.name for one in without_classes(every, "segmentation")}
    assert set(METRICS) - kept == {"dcp", "di", "mmd"}
    assert "only for classification with one class per image: dcp, di, mmd" in caplog.text
    assert "no classes" not in caplog.text
    kept -= {one.name for one in without_classes(every, "regression")}
    assert "no classes that they could separate: abs_snr, fdr, gsd, gsd_reader, ttest" in caplog.text
    assert kept == {"abs_snr", "fdr", "gsd", "gsd_reader", "ttest"}
