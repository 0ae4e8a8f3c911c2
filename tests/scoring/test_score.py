"""Scores of small networks by every metric beside their definitions, and what `score` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.errors import ScoreError
from prunus.scoring.collect import collect
from prunus.scoring.evidence import Channels
from prunus.scoring.metrics import METRICS
from prunus.scoring.score import score
from prunus.zoo.models import create
from tests import nets
from tests.scoring import naive
from tests.scoring.toys import CalledOften, batches, graph_of
from tests.tasks.nets import Wrapped, sums

NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": nets.Residual,
    "dense": nets.Dense,
    "flattened": nets.Flattened,
    "grouped": nets.Grouped,
    "channels last": nets.ChannelsLast,
    "transposed": nets.Transposed,
    "called often": CalledOften,
}


@pytest.fixture(scope="module", params=list(NETS))
def scored(request: pytest.FixtureRequest) -> tuple[pr.ChannelGraph, dict[str, Any], dict[str, np.ndarray]]:
    graph = graph_of(NETS[request.param])
    modules = sorted({r.module for u in graph.units.values() for r in u.readers})
    stored = naive.inputs_of(graph.model, modules, batches())
    return graph, score(graph, batches(), "all"), stored


def best_over_readers(
    graph: pr.ChannelGraph, stored: dict[str, np.ndarray], unit: pr.Unit, value: Callable[[pr.Reader, int, Any], float]
) -> np.ndarray:
    """max over the unit's readers of value(reader, row, activations [N, d]). No two of these nets' readers share."""
    best = np.full(unit.width, -np.inf)
    for reader in unit.readers:
        values = naive.channel_values(graph.model, reader, stored[reader.module])
        for i, channel in enumerate(reader.channels):
            best[channel] = max(best[channel], value(reader, i, values[i]))
    return best


@pytest.mark.parametrize("name", ["gsd", "fdr", "abs_snr", "ttest", "act_variance", "di", "mmd"])
def test_metrics_of_activations(scored: Any, name: str) -> None:
    graph, found, stored = scored
    labels = naive.labels_of(batches())
    definition = getattr(naive, name)
    for unit in graph.units.values():
        wanted = best_over_readers(graph, stored, unit, lambda _r, _i, values: definition(values, labels))
        np.testing.assert_allclose(found[name].values[unit.name], wanted, rtol=1e-6)


def test_reader_metrics(scored: Any) -> None:
    graph, found, stored = scored
    labels = naive.labels_of(batches())
    for unit in graph.units.values():

        def energy(reader: pr.Reader, i: int, values: Any) -> float:
            return naive.mean_square(values) * naive.reader_squares(graph.model, reader)[i]

        def weighed(reader: pr.Reader, i: int, values: Any) -> float:
            return (naive.gsd(values, labels) + 1) * naive.reader_squares(graph.model, reader)[i] ** 0.5

        for name, value in (("reader_energy", energy), ("gsd_reader", weighed)):
            wanted = best_over_readers(graph, stored, unit, value)
            np.testing.assert_allclose(found[name].values[unit.name], wanted, rtol=1e-6)


def test_fisher_is_the_squared_gradient_of_a_gate(scored: Any) -> None:
    """A gate of 1 on each channel in front of the unit's readers; one image at a time, one backward each."""
    graph, found, _ = scored
    every = [(x[i : i + 1], y[i : i + 1]) for x, y in batches() for i in range(len(y))]
    for unit in graph.units.values():
        total = np.zeros(unit.width)
        for image, label in every:
            gate = torch.ones(unit.width, dtype=torch.float64, requires_grad=True)
            loss = F.cross_entropy(gated(graph, unit, gate, image), label)
            total += torch.autograd.grad(loss, gate)[0].numpy() ** 2
        np.testing.assert_allclose(found["fisher"].values[unit.name], total / 60, rtol=1e-6, atol=1e-18)


def gated(graph: pr.ChannelGraph, unit: pr.Unit, gate: Tensor, images: Tensor) -> Tensor:
    handles = []
    for reader in unit.readers:
        layer = graph.model.get_submodule(reader.module)

        def hook(module: nn.Module, args: Any, reader: pr.Reader = reader) -> Any:
            x = args[0]
            axis = x.ndim - 1 if isinstance(module, nn.Linear) else 1
            factor = torch.ones(x.shape[axis], dtype=x.dtype)
            for row, channel in enumerate(reader.channels):
                factor = factor.index_put((torch.from_numpy(reader.inputs[row]),), gate[int(channel)])
            shape = [1] * x.ndim
            shape[axis] = -1
            return (x * factor.view(shape),)

        handles.append(layer.register_forward_pre_hook(hook))
    try:
        return graph.model(images)
    finally:
        for handle in handles:
            handle.remove()


def test_filter_metrics(scored: Any) -> None:
    graph, found, _ = scored
    for unit in graph.units.values():
        rows = filter_rows(graph, unit, lambda name: graph.model.get_submodule(name).weight.detach())
        l1 = [sum(np.abs(part).sum() for part in row) for row in rows]
        l2 = [sum((part**2).sum() for part in row) ** 0.5 for row in rows]
        flat = [np.concatenate([part.ravel() for part in row]) for row in rows]
        fpgm = [sum(float(np.linalg.norm(a - b)) for b in flat) for a in flat]
        np.testing.assert_allclose(found["l1"].values[unit.name], l1, rtol=1e-12)
        np.testing.assert_allclose(found["l2"].values[unit.name], l2, rtol=1e-12)
        np.testing.assert_allclose(found["fpgm"].values[unit.name], fpgm, rtol=1e-9)


def test_taylor_is_the_sum_of_weight_times_gradient(scored: Any) -> None:
    graph, found, _ = scored
    x, y = torch.cat([x for x, _ in batches()]), torch.cat([y for _, y in batches()])
    weights = {
        n: m.weight for n, m in graph.model.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)
    }
    gradients = torch.autograd.grad(F.cross_entropy(graph.model(x), y), list(weights.values()), allow_unused=True)
    products = {
        n: (w * g).detach() if g is not None else None for (n, w), g in zip(weights.items(), gradients, strict=True)
    }
    for unit in graph.units.values():
        rows = filter_rows(graph, unit, lambda name: products[name])
        wanted = [sum(np.abs(part).sum() for part in row) for row in rows]
        np.testing.assert_allclose(found["taylor"].values[unit.name], wanted, rtol=1e-6, atol=1e-20)


def filter_rows(graph: pr.ChannelGraph, unit: pr.Unit, weight_of: Callable[[str], Tensor]) -> list[list[np.ndarray]]:
    """For each channel the weights of its filters: of writers, or of readers if the unit is a stream."""
    rows: list[list[np.ndarray]] = [[] for _ in range(unit.width)]
    for place in unit.writers if unit.kind == "private" else unit.readers:
        layer, weight = graph.model.get_submodule(place.module), weight_of(place.module).numpy()
        is_writer = isinstance(place, pr.Writer)
        numbers = place.outputs if is_writer else place.inputs
        by_row = is_writer != isinstance(layer, nn.ConvTranspose2d)
        groups = getattr(layer, "groups", 1)
        for channel, positions in zip(place.channels, numbers, strict=True):
            for p in positions:
                if by_row:
                    rows[channel].append(weight[p])
                else:
                    size = weight.shape[0] // groups
                    group = p // weight.shape[1]
                    rows[channel].append(weight[group * size : (group + 1) * size, p % weight.shape[1]])
    return rows


@pytest.mark.parametrize(
    ("build", "norms", "without"),
    [
        (nets.Chain, {"a:out": "bn"}, "b:out"),  # behind the writer, or none
        (nets.PreActivation, {"conv1:in": "bn1", "conv1:out": "bn2"}, None),  # in front of the reader
        (nets.Residual, {"conv1:out": "bn1"}, "conv1:in"),  # one that the whole stream shares is nobody's
    ],
)
def test_scales_of_norms(build: Callable[[], nn.Module], norms: dict[str, str], without: str | None) -> None:
    graph = graph_of(build)
    found = score(graph, metric="bn_scale")
    for unit, norm in norms.items():
        np.testing.assert_array_equal(found.values[unit], graph.model.get_submodule(norm).weight.detach().abs())
    if without is not None:
        np.testing.assert_allclose(found.values[without], score(graph, metric="l2").values[without], rtol=1e-12)


def test_metrics_of_a_list_share_the_pass_and_score_as_alone() -> None:
    graph = graph_of(nets.Chain)
    forwards = []
    handle = graph.model.register_forward_hook(lambda *_: forwards.append(1))
    moment = [name for name, metric in METRICS.items() if metric.needs == "moments"]
    found = score(graph, batches(), [*moment, "l1"])
    assert len(forwards) == len(batches())
    handle.remove()
    assert list(found) == [*moment, "l1"]
    for name in ("gsd", "l1"):
        alone = score(graph, batches(), name)
        assert alone.metric == found[name].metric == name
        for unit, values in alone.values.items():
            np.testing.assert_allclose(found[name].values[unit], values, rtol=1e-9)
    assert set(score(graph, batches(), "all")) == set(METRICS)


def test_statistics_serve_any_number_of_metrics() -> None:
    graph = graph_of(nets.Chain)
    statistics = collect(graph, batches())
    for ridge in (0.05, 0.5):
        a, b = score(graph, statistics, "gsd", ridge=ridge), score(graph, batches(), "gsd", ridge=ridge)
        assert a.options == {"ridge": ridge} and a.num_images == 30
        for unit in graph.units:
            np.testing.assert_array_equal(a.values[unit], b.values[unit])
    with pytest.raises(ScoreError, match="mmd cannot be computed without images"):
        score(graph, statistics, "mmd")


def test_a_metric_of_ones_own() -> None:
    graph = graph_of(nets.Dense)

    def largest_mean(channels: Channels, power: float = 1.0) -> Tensor:
        return channels.moments.mean.abs().max(0).values ** power

    found = score(graph, batches(), largest_mean, power=2)
    assert found.metric == "largest_mean" and found.options == {"power": 2}
    statistics = collect(graph, batches())
    for name, taps in statistics.units.items():
        wanted = np.stack([tap.moments.mean.abs().max(0).values.numpy() ** 2 for tap in taps]).max(0)
        np.testing.assert_allclose(found.values[name], wanted, rtol=1e-12)
    assert len(statistics.units["conv0:out"]) > 1
    assert score(graph, batches(), lambda c: [1.0] * c.moments.channels).values["conv0:out"].tolist() == [1] * 4


def test_filter_metrics_need_no_data() -> None:
    graph = graph_of(nets.Chain)
    for name in ("l1", "l2", "fpgm", "bn_scale", "random"):
        assert score(graph, metric=name).num_images == 0
    drawn = [score(graph, metric="random", seed=seed).values["a:out"] for seed in (None, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


def test_with_a_ridge_of_zero_a_dead_channel_is_the_lowest() -> None:
    graph = graph_of(nets.Chain)
    with torch.no_grad():
        graph.model.get_submodule("bn").weight[1] = 0
        graph.model.get_submodule("bn").bias[1] = -1
    for name in ("gsd", "gsd:ridge=0", "fdr:ridge=0", "abs_snr:ridge=0", "ttest:ridge=0"):
        found = score(graph, batches(), name).values["a:out"]
        assert np.isfinite(found).all() and found.argmin() == 1
    assert score(graph, batches(), "gsd:ridge=0").values["a:out"][1] == -1  # 0 / 0 counts as 0


def test_what_a_task_cannot_score_is_left_out_of_all(caplog: pytest.LogCaptureFixture) -> None:
    batches = sums()
    graph = pr.trace(Wrapped().eval(), tuple(x[:1] for x in batches[0][0]))
    found = pr.score(graph, batches, "all", task="regression", seed=0)
    assert {"l1", "reader_energy", "rebuilt", "taylor"} <= set(found)
    assert not {"gsd", "gsd_reader", "di", "mmd"} & set(found)
    assert "gsd" in caplog.text


def with_classes(counts: list[int]) -> list[tuple[Tensor, Tensor]]:
    labels = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    x, _ = batches(len(labels), len(labels))[0]
    return [(x[i : i + 6], labels[i : i + 6]) for i in range(0, len(labels), 6)]


def test_small_classes_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(nets.Chain)
    images = with_classes([8, 0, 6, 1, 5])
    found = collect(graph, images)
    assert found.classes == (0, 2, 4)
    assert "left out of the scores: class 1 without images, class 3 with one image" in caplog.text
    without = [(x[y != 3], y[y != 3]) for x, y in images]
    for metric in ("gsd", "ttest", "di", "mmd"):
        a, b = score(graph, images, metric), score(graph, without, metric)
        np.testing.assert_allclose(a.values["a:out"], b.values["a:out"], rtol=1e-9)


def test_channel_numbers_behind_a_padded_shortcut() -> None:
    """Numbers 0 to 15 come from the first stage, which the shortcut puts at positions 8 to 23 of 32."""
    torch.manual_seed(0)
    model = create("resnet8").eval()
    graph = pr.trace(model, torch.zeros(1, 3, 32, 32))
    unit = graph.units["layer3.0.conv1:in"]
    positions = [*range(8, 24), *range(8), *range(24, 32)]
    assert [int(place[0]) for place in unit.readers[0].inputs] == positions
    norms = model.get_parameter("layer3.0.conv1.weight").detach().abs().sum((0, 2, 3))
    found = pr.score(graph, metric="l1").values["layer3.0.conv1:in"]
    np.testing.assert_allclose(found, norms[positions], rtol=1e-6)
