"""One pass over small networks beside all activations stored: every kind of reader, memory layout and label."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.scoring.collect import collect
from tests import nets
from tests.scoring import naive
from tests.scoring.toys import CalledOften, batches, entering, graph_of
from tests.tasks.nets import UNet, Wrapped, squares, sums, tags

NETS: dict[str, Callable[[], nn.Module]] = {
    "chain": nets.Chain,
    "residual": nets.Residual,  # in-place ReLU, a stream and its selections
    "pre-activation": nets.PreActivation,
    "squeeze-excite": nets.SqueezeExcite,
    "concat": nets.Concat,
    "dense": nets.Dense,  # one unit read at several places
    "grouped": nets.Grouped,
    "depthwise": nets.Depthwise,
    "flattened": nets.Flattened,  # several positions a channel
    "channels last": nets.ChannelsLast,  # linear layers on [N, H, W, C]
    "shuffle": nets.Shuffle,
    "transposed": nets.Transposed,
    "called often": CalledOften,
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_moments_of_every_unit_at_every_tap(name: str, dtype: torch.dtype) -> None:
    graph, images = graph_of(NETS[name], dtype), batches(dtype=dtype)
    found = collect(graph, images)
    labels = naive.labels_of(images)
    modules = sorted({r.module for u in graph.units.values() for r in u.readers})
    stored = naive.inputs_of(graph.model, modules, images)
    assert found.num_images == 30 and found.classes == (0, 1, 2, 3, 4)
    assert list(found.units) == list(graph.units)
    rtol = 1e-9 if dtype == torch.float64 else 1e-4
    for unit in graph.units.values():
        covered = {
            (reader.module, int(c)) for tap in found.units[unit.name] for reader in tap.readers for c in tap.channels
        }
        assert covered == {(reader.module, int(c)) for reader in unit.readers for c in reader.channels}
        for tap in found.units[unit.name]:
            for reader in tap.readers:  # layers that share a tensor see the same
                values = naive.channel_values(graph.model, reader, stored[reader.module])
                for i, channel in enumerate(tap.channels):
                    mine = values[int(np.flatnonzero(reader.channels == channel)[0])]
                    for k in range(5):
                        part = mine[labels == k]
                        assert tap.moments.num_images[k] == len(part)
                        assert tap.moments.count[k] == part.size
                        assert tap.moments.mean[k, i] == pytest.approx(part.mean(), rel=rtol, abs=rtol)
                        assert tap.moments.variance[k, i] == pytest.approx(part.var(), rel=rtol, abs=1e-12)


def test_batches_may_have_any_form_size_and_memory_layout() -> None:
    graph = graph_of(nets.Chain)
    wanted = collect(graph, batches()).units["a:out"][0].moments
    whole = batches(batch=30)[0]
    for loader in (
        batches(batch=1),
        [{"image": x, "label": y} for x, y in batches(batch=11)],
        [[x.to(memory_format=torch.channels_last), y] for x, y in batches()],
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*whole), batch_size=4, shuffle=True),
        (pair for pair in batches()),
    ):
        found = collect(graph, loader).units["a:out"][0].moments
        torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.m2, wanted.m2, rtol=1e-11, atol=0)


def test_images_of_different_sizes_pool_all_of_their_pixels() -> None:
    graph = graph_of(nets.Chain)
    small, large = batches(10, 10), batches(12, 12, shape=(3, 10, 6), seed=1)
    moments = collect(graph, [*small, *large]).units["a:out"][0].moments
    reader = graph.units["a:out"].readers[0]
    parts = [naive.inputs_of(graph.model, ["b"], one)["b"] for one in (small, large)]
    labels = [naive.labels_of(one) for one in (small, large)]
    assert reader.module == "b"
    for k in range(5):
        mine = [part[label == k] for part, label in zip(parts, labels, strict=True)]
        assert moments.count[k] == mine[0][:, 0].size + mine[1][:, 0].size
        for c in range(4):
            values = np.concatenate([m[:, c].ravel() for m in mine])
            assert moments.mean[k, c] == pytest.approx(values.mean(), rel=1e-10)
            assert moments.variance[k, c] == pytest.approx(values.var(), rel=1e-10)


def _divergence(own: np.ndarray, rest: np.ndarray, ridge: float = 0.05) -> float:
    v, w, gap = own.var(), rest.var(), own.mean() - rest.mean()
    return float(0.5 * (v / (w + ridge) + w / (v + ridge)) + 0.5 * gap**2 / (v + w + ridge) - 1)


def naive_gsd(samples: list[np.ndarray], ridge: float = 0.05) -> float:
    """G-SD of one channel from the samples of each class; paper Eqn. 1."""
    rests = [np.concatenate([*samples[:c], *samples[c + 1 :]]) for c in range(len(samples))]
    return float(np.mean([_divergence(own, rest, ridge) for own, rest in zip(samples, rests, strict=True)]))


def test_every_pixel_is_a_sample_of_its_class() -> None:
    """At the resolution of the labels: the samples of a class are the activations at its pixels."""
    torch.manual_seed(0)
    model, batches = UNet().eval(), squares()
    for _, y in batches:
        y[:, 0] = 255  # ignored
    graph = pr.trace(model, torch.zeros(1, 1, 12, 12))
    found = pr.score(graph, batches, metric="gsd", task="segmentation")
    x, y = entering(model, "head", batches), torch.cat([y for _, y in batches]).numpy()
    for channel in range(3):
        values = x[:, channel].numpy().astype(np.float64)
        want = naive_gsd([values[y == c] for c in range(3)])
        assert found.values["up.0:out"][channel] == pytest.approx(want, rel=1e-6)


def test_a_position_of_a_smaller_map_stands_for_all_pixels_of_its_area() -> None:
    torch.manual_seed(1)
    model, batches = UNet(aux=True).eval(), squares()
    graph = pr.trace(model, torch.zeros(1, 1, 12, 12))
    found = pr.collect(graph, batches, task="segmentation")
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
    graph = pr.trace(net, torch.zeros(1, 1, 8, 8))
    found = pr.score(graph, batches, metric="gsd", task="multilabel")
    x = entering(net, "2", batches).numpy().astype(np.float64)
    y = torch.cat([y for _, y in batches]).numpy()
    for channel in range(6):
        values = x[:, channel]
        parts = [_divergence(values[y[:, i] == 1].ravel(), values[y[:, i] == 0].ravel(), 0.05) for i in range(3)]
        assert found.values["0:out"][channel] == pytest.approx(np.mean(parts), rel=1e-6)
    energy = pr.score(graph, batches, metric="act_variance", task="multilabel")
    assert energy.values["0:out"] == pytest.approx(x.transpose(1, 0, 2, 3).reshape(6, -1).var(1), rel=1e-6)


def test_numbers_are_binned_if_asked() -> None:
    torch.manual_seed(3)
    batches = sums()
    graph = pr.trace(Wrapped().eval(), tuple(x[:1] for x in batches[0][0]))
    with pytest.raises(pr.ScoreError, match=r"regression\(bins"):
        pr.score(graph, batches, metric="gsd", task="regression")
    numbers = torch.cat([y for _, y in batches])
    border = float(numbers.median())
    found = pr.collect(graph, batches, task=pr.regression(bins=[border]))
    assert found.classes == (0, 1)
    tap = found.units["one:out"][0]
    assert tap.moments.num_images.tolist() == [int((numbers <= border).sum()), int((numbers > border).sum())]
