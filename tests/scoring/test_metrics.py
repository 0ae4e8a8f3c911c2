"""Every metric beside its definition on random data, and what its formula promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.graph.units import Unit
from prunus.scoring.collect import class_moments
from prunus.scoring.evidence import Channels, Filters, Gradients, Maps
from prunus.scoring.metrics import METRICS
from tests.scoring import naive

CHANNELS = 4


def maps(images: int = 30, pixels: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Maps [N, n, d] after a ReLU, one channel nearly dead, and labels of three classes of different sizes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), images, replacement=True, generator=generator)
    labels[:6] = torch.arange(6) % 3
    x = torch.randn(images, CHANNELS, pixels, generator=generator, dtype=torch.float64)
    x = (x * (1 + 0.5 * labels.view(-1, 1, 1)) + 0.7 * labels.view(-1, 1, 1)).relu()
    x[:, 2] *= 0.01
    return x, labels


def channels(x: Tensor, labels: Tensor, norms: Tensor | None = None) -> Channels:
    return Channels(
        "u", class_moments(x, labels), torch.ones(x.shape[1], dtype=torch.float64) if norms is None else norms
    )


MOMENT = [
    ("gsd", naive.gsd, {}),
    ("gsd", naive.gsd, {"ridge": 0.5}),
    ("gsd", naive.gsd, {"ridge": 1e-12}),
    ("fdr", naive.fdr, {}),
    ("fdr", naive.fdr, {"ridge": 0.0}),
    ("abs_snr", naive.abs_snr, {}),
    ("ttest", naive.ttest, {}),
    ("ttest", naive.ttest, {"ridge": 0.1}),
    ("ttest", naive.ttest, {"noise_ridge": 1e-4}),
    ("ttest", naive.ttest, {"noise_ridge": 0.0}),
    ("act_variance", naive.act_variance, {}),
]


@pytest.mark.parametrize(("name", "definition", "options"), MOMENT)
def test_moment_metrics(name: str, definition: Callable[..., float], options: dict[str, float]) -> None:
    x, labels = maps()
    found = METRICS[name].score(channels(x, labels), **options)
    wanted = [definition(x[:, c].numpy(), labels.numpy(), **options) for c in range(CHANNELS)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_ttest_without_ridge_is_welch_on_image_counts() -> None:
    x, labels = maps()
    found = METRICS["ttest"].score(channels(x, labels), ridge=0.0)
    for c in range(CHANNELS):
        statistics = []
        for k in range(3):
            mine, rest = x[labels == k, c].numpy(), x[labels != k, c].numpy()
            n, m = len(mine), len(rest)
            # scipy divides std^2 by n: fed population deviations, it gives the paper's Eqn. 6.
            welch = scipy.stats.ttest_ind_from_stats(
                mine.mean(), mine.std(), n, rest.mean(), rest.std(), m, equal_var=False
            )
            statistics.append(abs(welch.statistic))
        assert found[c] == pytest.approx(np.mean(statistics), rel=1e-12)


@pytest.mark.parametrize("name", ["gsd", "fdr", "abs_snr", "ttest"])
def test_discriminants_do_not_see_scale_and_shift_without_a_ridge(name: str) -> None:
    x, labels = maps()
    score = METRICS[name].score
    plain = score(channels(x, labels), ridge=0.0)
    torch.testing.assert_close(score(channels(3 * x, labels), ridge=0.0), plain, rtol=1e-9, atol=0)
    torch.testing.assert_close(score(channels(x + 5, labels), ridge=0.0), plain, rtol=1e-8, atol=0)
    torch.testing.assert_close(score(channels(-x, labels), ridge=0.0), plain, rtol=1e-9, atol=0)


def test_a_dead_channel_scores_lowest_and_finite() -> None:
    x, labels = maps()
    x[:, 1] = 0
    for name in ("gsd", "fdr", "abs_snr", "ttest", "act_variance", "reader_energy", "gsd_reader"):
        found = METRICS[name].score(channels(x, labels))
        assert torch.isfinite(found).all()
        assert found.argmin() == 1
    for ridge in (0.05, 0.0):  # v = w = 0: SD = 0 + 0 - 1, also where 0 / 0 counts as 0
        assert METRICS["gsd"].score(channels(x, labels), ridge=ridge)[1] == -1


def whole(x: Tensor, labels: Tensor, memory: int = 1 << 26) -> Maps:
    return Maps("u", labels, x, memory)


@pytest.mark.parametrize(("images", "pixels"), [(30, 6), (20, 33), (24, 24)])
@pytest.mark.parametrize("rho", [1e-4, 1.0])
def test_di_in_all_of_its_forms(images: int, pixels: int, rho: float) -> None:
    x, labels = maps(images, pixels)
    wanted = [naive.di(x[:, c].numpy(), labels.numpy(), rho) for c in range(CHANNELS)]
    score = METRICS["di"].score
    for memory in (1, 1 << 26):  # one channel at a time, all at once
        np.testing.assert_allclose(score(whole(x, labels, memory), rho=rho), wanted, rtol=1e-6)
    np.testing.assert_allclose(score(whole(x.float(), labels), rho=rho), wanted, rtol=1e-2)
    torch.testing.assert_close(score(whole(x + 7, labels), rho=rho), score(whole(x, labels), rho=rho))


@pytest.mark.parametrize("sigma", [1.0, 0.3, "median"])
def test_mmd(sigma: Any) -> None:
    x, labels = maps(16, 5)
    wanted = [naive.mmd(x[:, c].numpy(), labels.numpy(), sigma) for c in range(CHANNELS)]
    for memory in (1, 1 << 26):
        found = METRICS["mmd"].score(whole(x, labels, memory), sigma=sigma)
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
    shifted = METRICS["mmd"].score(whole(x + 100, labels), sigma=sigma)
    np.testing.assert_allclose(shifted, wanted, rtol=1e-8)
    if sigma == "median":  # distances and their median scale together
        np.testing.assert_allclose(METRICS["mmd"].score(whole(50 * x, labels), sigma=sigma), wanted, rtol=1e-9)


def test_mmd_of_a_dead_channel_is_zero_and_bad_sigmas_are_refused() -> None:
    x, labels = maps(16, 5)
    x[:, 0] = 0
    for sigma in (1.0, "median"):
        assert METRICS["mmd"].score(whole(x, labels), sigma=sigma)[0].abs() < 1e-15
    for sigma in (0, -1.0, "mean"):
        with pytest.raises(ScoreError, match="sigma must be a positive number"):
            METRICS["mmd"].score(whole(x, labels), sigma=sigma)


def test_filter_metrics_by_hand() -> None:
    weights = torch.tensor([[3.0, -4.0], [0.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    filters = Filters("u", weights, torch.tensor([0.1, 2.0, 0.3], dtype=torch.float64))
    assert METRICS["l1"].score(filters).tolist() == [7, 0, 3]
    assert METRICS["l2"].score(filters).tolist() == [5, 0, 3]
    assert METRICS["fpgm"].score(filters).tolist() == [5 + 4, 5 + 3, 4 + 3]
    assert METRICS["bn_scale"].score(filters).tolist() == [0.1, 2.0, 0.3]
    assert METRICS["bn_scale"].score(Filters("u", weights, None)).tolist() == [5, 0, 3]


def test_gradient_metrics_by_hand() -> None:
    gradients = Gradients(
        "u",
        weights=torch.tensor([[1.0, 2.0], [3.0, -1.0]]),
        weight_gradients=torch.tensor([[0.5, -0.25], [1.0, 1.0]]),
        effect_squares=torch.tensor([8.0, 2.0]),
        num_images=4,
    )
    assert METRICS["taylor"].score(gradients).tolist() == [1.0, 4.0]  # 0.5 + 0.5, 3 + 1
    assert METRICS["fisher"].score(gradients).tolist() == [1.0, 0.25]  # 8 / (2 x 4), 2 / (2 x 4)


def unit_of(name: str) -> Unit:
    return Unit(name, 5, 1, "private", (), (), np.zeros(5, dtype=np.int64))


def test_random_depends_on_seed_and_unit_only() -> None:
    score = METRICS["random"].score
    torch.manual_seed(1)
    first = score(unit_of("a"))
    state = torch.get_rng_state()
    assert torch.equal(score(unit_of("a")), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(score(unit_of("b")), first)
    assert not torch.equal(score(unit_of("a"), seed=1), first)
    assert ((first >= 0) & (first < 1)).all()


def test_every_metric_is_described_without_an_import() -> None:
    assert len(METRICS) == 23
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.score.__doc__ and metric.help == METRICS.help(name) != ""


def maps_of(images: int, channels: int, height: int, width: int) -> Maps:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(images, channels, height, width, generator=generator).relu()
    x[:, 0] = 0
    x[:, 1] = x[:, 1, :1]  # equal rows: rank 1
    x[::2, 2, 1:] = 0  # rank 1 in half of the images
    return Maps("u", torch.zeros(images, dtype=torch.long), x.flatten(2), 1 << 20, height)


def test_hrank_is_the_mean_rank() -> None:
    maps = maps_of(6, 5, 4, 7)
    pictures_ = maps.maps.numpy().reshape(6, 5, 4, 7)
    wanted = [np.mean([np.linalg.matrix_rank(pictures_[i, c]) for i in range(6)]) for c in range(5)]
    found = METRICS["hrank"].score(maps)
    assert found.tolist() == wanted
    assert found[:2].tolist() == [0, 1] and found[2] < found[3]
    fewer = METRICS["hrank"].score(maps, images=2)  # the first and the last image
    assert fewer.tolist() == [np.mean([np.linalg.matrix_rank(pictures_[i, c]) for i in (0, 5)]) for c in range(5)]
    with pytest.raises(ScoreError, match="images must be at least 1"):
        METRICS["hrank"].score(maps, images=0)


@pytest.mark.parametrize(("channels", "height", "width"), [(5, 4, 7), (9, 2, 3), (1, 2, 2)])
def test_chip_is_the_nuclear_norm_lost_without_the_channel(channels: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, channels, height * width, generator=generator, dtype=torch.float64).relu()
    wanted = np.zeros(channels)
    for rows in x.numpy():
        for c in range(channels):
            without = rows.copy()
            without[c] = 0
            wanted[c] += (np.linalg.norm(rows, "nuc") - np.linalg.norm(without, "nuc")) / 4
    found = METRICS["chip"].score(Maps("u", torch.zeros(4, dtype=torch.long), x, 1 << 20, height))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
