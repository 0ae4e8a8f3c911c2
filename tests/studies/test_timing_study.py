"""Seconds to score layers: every layer and metric is there, the explicit inverse is DI, nothing is timed twice."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.errors import ScoreError
from prunus.scoring.evidence import Maps
from prunus.scoring.metrics import METRICS
from prunus.studies import timing_study as timing_module
from prunus.studies.folder import StudyFolder
from prunus.studies.timing_study import (
    COLUMNS,
    INVERSE,
    di_by_inverse,
    inverse_bytes,
    map_seconds,
    median_seconds,
    timing,
)
from tests.cli.command_line import lines, prunus


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 25, 3)).eval()


def batches(count: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(12, 1, 16, 16, generator=draw), torch.arange(12) % 3) for _ in range(count)]


@pytest.fixture
def graph() -> pr.ChannelGraph:
    return pr.trace(network(), torch.zeros(1, 1, 16, 16))


def test_every_layer_and_metric_has_a_row(graph: pr.ChannelGraph) -> None:
    found = timing(graph, batches(), metrics=("gsd", "di", "mmd", "reader_energy", "l1", "random"), num_images=30)
    assert [(row["layer"], row["metric"]) for row in found.rows] == [
        (unit, metric)
        for unit in ("0:out", "3:out")
        for metric in ("gsd", "di", INVERSE, "mmd", "reader_energy", "l1", "random")
    ]
    for row in found.rows:
        assert list(row) == list(COLUMNS)
        # 14x14 maps pooled to 7x7 enter the second layer; 5x5 maps the third.
        assert (row["channels"], row["pixels"]) == {"0:out": (6, 49), "3:out": (4, 25)}[row["layer"]]
        assert (row["images"], row["classes"]) == (30, 3)
        assert row["timed_channels"] == (1 if row["metric"] == INVERSE else row["channels"])
        assert row["seconds"] > 0 and row["total_seconds"] == row["seconds"] + row["maps_seconds"]
        assert (row["maps_seconds"] > 0) == (row["metric"] not in ("l1", "random"))
    text = " ".join(found.notes)
    assert "30 images of 3 classes" in text and "1 channel per layer timed" in text


def test_the_explicit_inverse_is_di() -> None:
    """Against numpy on the definition, and against prunus's form."""
    draw = np.random.default_rng(0)
    x, labels = draw.standard_normal((20, 3, 9)), np.arange(20) % 4
    x[:, :, :2] += labels[:, None, None]
    maps = Maps("unit", torch.from_numpy(labels), torch.from_numpy(x).float(), 1 << 30)
    expected = []
    for channel in range(3):
        f = x[:, channel].astype(np.float32).astype(np.float64)
        total = sum(np.outer(row - f.mean(0), row - f.mean(0)) for row in f)
        between = sum(
            (labels == c).sum() * np.outer(f[labels == c].mean(0) - f.mean(0), f[labels == c].mean(0) - f.mean(0))
            for c in range(4)
        )
        expected.append(np.trace(np.linalg.inv(total + 1e-4 * np.eye(9)) @ between))
    assert di_by_inverse(maps, 3).numpy() == pytest.approx(np.array(expected), rel=1e-9)
    assert di_by_inverse(maps, 2).numpy() == pytest.approx(METRICS["di"].score(maps).numpy()[:2], rel=1e-6)


def test_an_inverse_that_does_not_fit_is_left_out(graph: pr.ChannelGraph) -> None:
    memory = inverse_bytes(25)  # enough for the second unit's maps of 5x5 pixels, not for 7x7
    found = timing(graph, batches(), metrics=("gsd", "di"), num_images=12, memory=str(memory))
    assert [r["layer"] for r in found.rows if r["metric"] == INVERSE] == ["3:out"]
    assert any("di_inverse of 0:out was not timed: maps of 49 pixels need" in note for note in found.notes)
    found = timing(graph, batches(), metrics=("di",), num_images=12, inverse_channels=0)
    assert {row["metric"] for row in found.rows} == {"di"}


def test_maps_of_later_layers_take_longer(graph: pr.ChannelGraph) -> None:
    before = len(graph.model._forward_pre_hooks)
    seconds = map_seconds(graph, batches())
    assert 0 < seconds["0:out"] < seconds["3:out"]
    assert len(graph.model._forward_pre_hooks) == before


def test_metrics_that_have_no_time_of_a_layer(graph: pr.ChannelGraph) -> None:
    with pytest.raises(ScoreError, match="taylor needs a pass through the whole network"):
        timing(graph, batches(), metrics=("taylor",))
    with pytest.raises(ScoreError, match=r"there is no metric called 'unheard'\. Available: abs_snr"):
        timing(graph, batches(), metrics=("unheard",))
    with pytest.raises(ScoreError, match="wall, cpu"):
        timing(graph, batches(), metrics=("gsd",), clock="sun")


@pytest.mark.timing
def test_processor_time_leaves_out_waiting(graph: pr.ChannelGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = lambda: time.sleep(0.03)
    assert median_seconds(wait, "cpu") < median_seconds(wait, "wall") / 2
    found = timing(graph, batches(), metrics=("gsd",), num_images=12, clock="cpu")
    assert "processor time of the process" in found.notes[0] and found.clock == "cpu"


def test_what_is_finished_is_not_timed_again(
    graph: pr.ChannelGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StudyFolder(tmp_path / "study", "timing", {"num_images": 12})
    folder.start()
    first = timing(graph, batches(), metrics=("gsd", "di"), num_images=12, folder=folder)
    (next((tmp_path / "study" / "rows").glob("3-out-gsd*"))).unlink()
    count: list[float] = []
    monkeypatch.setattr(timing_module, "median_seconds", lambda *_: count.append(1.0) or 5.0)  # type: ignore[func-returns-value]
    again = timing(graph, batches(), metrics=("gsd", "di"), num_images=12, folder=folder)
    assert len(count) == 1
    assert [r for r in again.rows if (r["layer"], r["metric"]) != ("3:out", "gsd")] == [
        r for r in first.rows if (r["layer"], r["metric"]) != ("3:out", "gsd")
    ]
    assert next(r for r in again.rows if (r["layer"], r["metric"]) == ("3:out", "gsd"))["seconds"] == 5.0


def test_the_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = ["lenet5", "--data", "digits", "--num-images", "40", "--inverse-channels", "1"]
    words += ["--memory", "512M", "--threads", "1"]
    with caplog.at_level(logging.ERROR):
        said = lines(prunus("study", "timing", *words, "--out", tmp_path / "study", columns=200))
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    assert study["asked"]["num_images"] == 40 and study["columns"]["seconds"] == "seconds, maps given"
    # Maps that enter conv2 (14x14), conv3 (5x5), fc1 and fc2 (1 pixel each).
    sizes = {row["layer"]: (row["channels"], row["pixels"]) for row in study["rows"]}
    assert sizes == {"conv1:out": (6, 196), "conv2:out": (16, 25), "conv3:out": (120, 1), "fc1:out": (84, 1)}
    assert said[0].split() == ["layer", "channels", "pixels", "gsd", "di", "di_inverse", "maps"]
    for picture, words in zip(study["pictures"], ("feature maps not included", "feature maps included"), strict=True):
        drawn = (tmp_path / "study" / picture["file"]).read_text()
        assert words in drawn and "40 images of 32x32 pixels, CPU, 1 thread" in drawn and "conv3:out" in drawn
        assert "explicit inverse: 1 channel timed, multiplied by the number of channels" in drawn
