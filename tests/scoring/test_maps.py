"""Whole maps of a sample: bounded memory, scatters, heights of maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import prunus as pr
from prunus.errors import ScoreError
from prunus.scoring.score import score
from tests import nets
from tests.scoring.toys import Shortcut, batches, entering, graph_of, settled
from tests.tasks.nets import UNet, squares


def test_memory_for_maps_is_bounded_by_more_passes_and_then_by_fewer_images(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(nets.Chain)
    whole = score(graph, batches(), "mmd")
    forwards: list[int] = []
    handle = graph.model.register_forward_hook(lambda *_: forwards.append(1))
    one_unit = 30 * 4 * 64 * 8  # a:out: 30 images, 4 channels, 64 pixels of 8 bytes
    with caplog.at_level("INFO"):
        split = score(graph, batches(), "mmd", memory=one_unit)
    assert len(forwards) == 2 * len(batches()) + 1  # a pass for each unit, and one forward of the example
    assert "maps of 30 images need 0.00 GiB, in 2 passes" in caplog.text
    for unit in graph.units:
        np.testing.assert_allclose(split.values[unit], whole.values[unit], rtol=1e-12)
    with caplog.at_level("WARNING"):
        fewer = score(graph, batches(), "mmd", memory=one_unit // 2, seed=0)
    assert "maps of 30 images do not fit into 0.00 GiB; using 15" in caplog.text
    assert np.isfinite(fewer.values["a:out"]).all()
    with pytest.raises(ScoreError, match="maps of two images per class need more than"):
        score(graph, batches(), "mmd", memory=2000)
    handle.remove()


def test_di_alone_streams_where_maps_are_small() -> None:
    graph = graph_of(nets.Flattened)  # 16 pixels < 30 images < 64 would not stream
    alone, beside = score(graph, batches(), "di"), score(graph, batches(), ["di", "mmd"])["di"]
    for unit in graph.units:
        np.testing.assert_allclose(alone.values[unit], beside.values[unit], rtol=1e-7)
    assert alone.num_images == 30


def test_di_warns_of_fewer_images_than_pixels(caplog: pytest.LogCaptureFixture) -> None:
    """With fewer images than pixels, any maps separate the five classes perfectly: DI is C - 1 = 4 for all channels."""
    graph = graph_of(nets.Chain)  # a:out has maps of 8x8 = 64 pixels, b:out has smaller ones
    few = score(graph, batches(30), "di", rho=1e-9)
    np.testing.assert_allclose(few.values["a:out"], 4, atol=1e-3)
    assert (few.values["b:out"] < 3.9).all()
    assert "di: 30 images are too few for 1 of 2 units" in caplog.text and "(a:out: 64)" in caplog.text
    assert "Use clearly more than 64 images (num_map_images, --num-map-images)" in caplog.text
    caplog.clear()
    assert (score(graph, batches(200), "di", rho=1e-9).values["a:out"] < 3.9).all()
    score(graph, batches(30), "mmd")  # it does not saturate
    assert not caplog.text


def test_maps_of_a_network_keep_their_height() -> None:
    """HRank through a whole network: conv maps, pooled features and a flattened map of 2 x 2 pixels."""
    model = settled(Shortcut(), (2, 8, 8))
    images = batches(shape=(2, 8, 8), images=10)
    graph = pr.trace(model, images[0][0][:1])
    found = pr.score(graph, images, "hrank", num_map_images=None).values
    ranks = np.linalg.matrix_rank(entering(model, "second", images).float().numpy())
    np.testing.assert_allclose(found["first:out"], ranks.mean(0))
    alone = pr.score(graph, [some for some, _ in images], "hrank", num_map_images=None).values  # without labels
    np.testing.assert_array_equal(alone["first:out"], found["first:out"])
    one_class = [(some, torch.zeros(len(some), dtype=torch.int64)) for some, _ in images]
    np.testing.assert_allclose(
        pr.score(graph, one_class, "hrank", num_map_images=None).values["first:out"], ranks.mean(0)
    )
    with pytest.raises(ScoreError, match="two classes"):
        pr.score(graph, one_class, ["hrank", "mmd"])
    with pytest.raises(ScoreError, match=r"maps of two images need more than .* raise memory"):
        pr.score(graph, images, "hrank", memory=1)


def test_metrics_of_maps_without_classes_serve_every_task() -> None:
    torch.manual_seed(4)
    model, batches = UNet().eval(), squares()
    graph = pr.trace(model, batches[0][0][:1])
    found = pr.score(graph, batches, ["hrank", "chip"], task="segmentation", num_map_images=None)
    maps, name = entering(model, "head", batches).numpy(), "up.0:out"
    # one of 48 images may be on the border of a rank on another processor
    assert found["hrank"].values[name] == pytest.approx(np.linalg.matrix_rank(maps).mean(0), abs=1.01 / len(maps))
    rows = maps.astype(np.float64).reshape(*maps.shape[:2], -1)
    first = np.delete(rows, 0, axis=1)
    lost = [np.linalg.norm(a, "nuc") - np.linalg.norm(b, "nuc") for a, b in zip(rows, first, strict=True)]
    assert found["chip"].values[name][0] == pytest.approx(np.mean(lost), rel=1e-5)
    with pytest.raises(pr.ScoreError, match="mmd is only for classification"):
        pr.score(graph, batches, ["hrank", "mmd"], task="segmentation")
