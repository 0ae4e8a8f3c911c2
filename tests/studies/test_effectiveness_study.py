"""Metrics compared by uniform cuts: figures worked out by hand, all points there, and nothing computed twice."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import prunus as pr
from prunus.errors import DecideError, RunError, ScoreError
from prunus.scoring.metrics import METRICS
from prunus.scoring.passes import sampled
from prunus.studies import effectiveness_study as comparison
from prunus.studies import read_study
from prunus.studies.effectiveness_study import accuracy_of, in_memory
from prunus.studies.folder import wait_until
from tests.cli.command_line import lines, prunus
from tests.processes import torchrun
from tests.proof import assert_accuracy
from tests.run.toys import TEST, TRAIN, Small, trained

ROUNDED = 1e-5  # accuracies of a study are points, rounded to three places


def compared(folder: Path, **words: Any) -> list[dict[str, Any]]:
    return pr.studies.effectiveness(
        trained(), TRAIN, TEST, folder, **{"metrics": ["l1", "gsd"], "ratios": (0.25, 0.5), **words}
    )


def test_accuracy_is_that_of_weights_zeroed_by_hand(tmp_path: Path) -> None:
    rows = compared(tmp_path / "inner", metrics=["l1"], ratios=(0.5,))
    network = copy.deepcopy(trained())
    assert isinstance(network, Small)
    with torch.no_grad():  # the inner channels: conv1 -> conv2 (24), and wide -> fc (16 channels of 4 x 4)
        for writer, reader, gone in ((network.conv1, network.conv2, 12), (network.wide, network.fc, 8)):
            size = writer.weight.abs().sum((1, 2, 3)).numpy()
            weak = np.argsort(size, kind="stable")[:gone]
            if isinstance(reader, nn.Linear):
                reader.weight.view(4, 16, 16)[:, weak] = 0  # [classes, channels, positions]
            else:
                reader.weight[:, weak] = 0
    assert [row["ratio"] for row in rows] == [0.0, 0.5]
    assert_accuracy(rows[1]["accuracy"] / 100, network, TEST, printed=ROUNDED)
    assert_accuracy(rows[0]["accuracy"] / 100, trained(), TEST, printed=ROUNDED)
    # conv2 reads 12 of 24 channels, conv1 writes them; wide writes 8 of 16, fc reads them.
    whole = 36 * (3 * 8 + 8 * 24 + 24 * 8) * 9 + 16 * 8 * 16 * 9 + 256 * 4
    left = 36 * (3 * 8 + 8 * 12 + 12 * 8) * 9 + 16 * 8 * 8 * 9 + 128 * 4
    assert rows[1]["macs_removed"] == pytest.approx(1 - left / whole, abs=1e-6)
    streams_too = compared(tmp_path / "all", metrics=["l1"], ratios=(0.5,), units="all")[1]
    assert streams_too["macs_removed"] > rows[1]["macs_removed"]


def test_ratio_nought_is_the_base_and_all_points_are_there(tmp_path: Path) -> None:
    rows = compared(tmp_path, metrics=["all"], ratios=(0.25,), num_images=96, num_map_images=40)
    assert [(row["metric"], row["ratio"]) for row in rows] == [(m, r) for m in METRICS for r in (0.0, 0.25)]
    (base,) = {row["accuracy"] for row in rows if row["ratio"] == 0}
    assert_accuracy(base / 100, trained(), TEST, printed=ROUNDED)
    images = {row["metric"]: row["images"] for row in rows}
    assert (images["gsd"], images["taylor"], images["di"], images["l1"]) == (96, 96, 40, 0)
    found = read_study(tmp_path)
    assert found["rows"] == rows and found["title"] and (tmp_path / "accuracy.png").exists()
    assert f"{base:.2f}% on 80 test images" in found["notes"][0]
    svg = (tmp_path / "accuracy.svg").read_text()
    assert all(f">{metric}</text>" in svg for metric in METRICS) and ">accuracy (%)</text>" in svg
    assert [picture["file"] for picture in found["pictures"]] == ["accuracy.svg", "correlations-1.svg"]


def test_rank_correlation_between_metrics(tmp_path: Path) -> None:
    """Beside scipy, unit by unit; a metric and itself agree, and so do L2 norms and themselves under another name."""
    compared(tmp_path, metrics=["l1", "l2", "random"], ratios=(0.25,))
    title, *lines = (tmp_path / "correlations.csv").read_text().splitlines()
    assert title == "network,metric,l1,l2,random"
    found = {line.split(",")[1]: [float(word) for word in line.split(",")[2:]] for line in lines}
    graph = pr.trace(trained(), TEST[0][0][:1])
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    l1, l2 = (pr.score(graph, None, name).values for name in ("l1", "l2"))
    wanted = sum(float(scipy.stats.spearmanr(l1[u], l2[u]).statistic) for u in inner) / len(inner)
    assert found["l1"][1] == found["l2"][0] == pytest.approx(wanted, abs=1e-4)
    assert [found[name][place] for place, name in enumerate(("l1", "l2", "random"))] == [1.0] * 3


def test_pruned_for_speed_and_zeroed_agree(tmp_path: Path) -> None:
    graph = pr.trace(trained(), TEST[0][0][:1])
    plan = pr.uniform(graph, pr.score(graph, None, "l2"), 0.4)
    quick = accuracy_of(pr.prune(graph, plan), graph, in_memory(TEST))
    with pr.zeroed(graph, plan):
        slow = pr.evaluate(graph.model, TEST)
        assert_accuracy(quick.quality, graph.model, TEST)
    assert quick.num_images == slow.num_images and quick.loss == pytest.approx(slow.loss, rel=1e-5)


def test_same_seed_same_table_and_seeds_have_a_standard_error(tmp_path: Path) -> None:
    words: dict[str, Any] = {"metrics": ["random", "l1"], "seeds": 3}
    rows = compared(tmp_path / "a", **words)
    assert compared(tmp_path / "b", **words) == rows
    assert (tmp_path / "a" / "table.csv").read_bytes() == (tmp_path / "b" / "table.csv").read_bytes()
    single = [json.loads(path.read_text())["row"] for path in sorted((tmp_path / "a" / "rows").glob("*random,0.5*"))]
    values = [row["accuracy"] for row in single]
    row = next(row for row in rows if (row["metric"], row["ratio"]) == ("random", 0.5))
    assert len(set(values)) > 1 and row["seeds"] == 3
    assert row["accuracy"] == pytest.approx(np.mean(values), abs=1e-3)
    assert row["standard_error"] == pytest.approx(scipy.stats.sem(values), abs=1e-3)
    assert (
        next(r for r in rows if (r["metric"], r["ratio"]) == ("l1", 0.5))["standard_error"] == 0
    )  # no images, no chance


def test_paired_tests_against_the_best_metric(tmp_path: Path) -> None:
    """Answers of both networks with weights zeroed, counted here; scipy's binomial test gives the p-value."""
    rows = {row["metric"]: row for row in compared(tmp_path, metrics=["l1", "random"], ratios=(0.5,)) if row["ratio"]}
    graph = pr.trace(trained(), TEST[0][0][:1])
    units = [name for name, unit in graph.units.items() if unit.kind == "private"]
    right = {}
    for metric in ("l1", "random"):
        with pr.zeroed(graph, pr.uniform(graph, pr.score(graph, None, metric), 0.5, units=units)), torch.no_grad():
            right[metric] = torch.cat([graph.model.eval()(images).argmax(1) == labels for images, labels in TEST])
    best, other = sorted(right, key=lambda name: -rows[name]["accuracy"])
    only = [int((right[a] & ~right[b]).sum()) for a, b in ((best, other), (other, best))]
    assert sum(only) > 0 and rows[best]["p"] is None
    assert rows[other]["p"] == pytest.approx(scipy.stats.binomtest(only[0], sum(only)).pvalue, rel=0.01)
    assert any(f"{best} is the best" in note for note in read_study(tmp_path)["notes"])


def test_a_stopped_study_computes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compared(tmp_path / "whole", metrics=["gsd", "random"])
    cuts, passes = [], []
    cut, score = comparison.pruned_or_same, comparison.score

    def counted(*words: Any) -> nn.Module:
        cuts.append(words)
        if len(cuts) == 4:
            raise KeyboardInterrupt
        return cut(*words)

    monkeypatch.setattr(comparison, "pruned_or_same", counted)
    monkeypatch.setattr(comparison, "score", lambda *words, **rest: passes.append(words) or score(*words, **rest))
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "stopped", metrics=["gsd", "random"])
    assert len(list((tmp_path / "stopped" / "rows").iterdir())) == 4  # gsd's three, and random's 0 without a cut
    assert len(passes) == 2
    assert compared(tmp_path / "stopped", metrics=["gsd", "random"]) == rows
    assert len(cuts) == 4 + 2 and len(passes) == 2
    assert compared(tmp_path / "stopped", metrics=["gsd", "random"]) == rows and len(cuts) == 6
    with pytest.raises(RunError, match="units was 'inner' there and is 'all' now"):
        compared(tmp_path / "stopped", metrics=["gsd", "random"], units="all")


def test_more_ratios_and_seeds_are_added_to_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random channels differ from seed to seed, so that no row can stand in for another."""
    words: dict[str, Any] = {"metrics": ["random"], "num_images": 32}
    whole = compared(tmp_path / "whole", ratios=(0.1, 0.25, 0.5), seeds=2, **words)
    compared(tmp_path / "some", ratios=(0.25, 0.5), seeds=1, **words)
    measured: list[tuple[float, int]] = []
    real = comparison.MetricComparison._measure

    def counted(self: Any, piece: Any, *rest: Any) -> Any:
        measured.append((piece.ratio, piece.seed))
        return real(self, piece, *rest)

    monkeypatch.setattr(comparison.MetricComparison, "_measure", counted)
    more = compared(tmp_path / "some", ratios=(0.1, 0.25, 0.5), seeds=2, **words)
    assert sorted(measured) == [(0.1, 0), (0.1, 1), (0.25, 1), (0.5, 1)]  # ratio 0 is the same network for all
    assert more == whole
    assert read_study(tmp_path / "some")["asked"]["ratios"] == [0.1, 0.25, 0.5]
    with pytest.raises(RunError, match="num_images was 32 there and is 48 now"):
        compared(tmp_path / "some", ratios=(0.1,), seeds=2, **{**words, "num_images": 48})


def test_repaired_and_retrained_beside_the_cut(tmp_path: Path) -> None:
    words: dict[str, Any] = {"repair": "solve", "num_repair_images": 64, "epochs": 1, "preset": "cosine", "lr": 0.01}
    rows = compared(tmp_path, metrics=["l1"], ratios=(0.5,), **words)
    assert rows[0]["repaired"] == rows[0]["accuracy"]  # nothing was cut, and nothing is mended
    graph = pr.trace(trained(), TEST[0][0][:1])
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    plan = pr.uniform(graph, pr.score(graph, None, "l1"), 0.5, units=inner)
    mended = pr.repair(graph, plan, [images for images, _ in sampled(TRAIN, 64, 0)], how="solve", seed=0)
    assert_accuracy(rows[1]["repaired"] / 100, mended, TEST, printed=ROUNDED)
    taught = pr.fit(mended, TRAIN, preset="cosine", epochs=1, lr=0.01, seed=0, device="cpu").model.eval()
    assert_accuracy(rows[1]["retrained"] / 100, taught, TEST, printed=ROUNDED)
    assert not (tmp_path / "checkpoints").exists() or not list((tmp_path / "checkpoints").iterdir())
    assert "after repair" in (tmp_path / "accuracy.svg").read_text()


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"ratios": (1.0,)}, DecideError, "fractions removed"),
        ({"units": "outer"}, DecideError, "inner, all"),
        ({"metrics": ["g-sd"]}, ScoreError, "there is no metric called 'g-sd': did you mean gsd"),
        (
            {"metrics": ["gsd:rigde=1"]},
            ScoreError,
            r"no option 'rigde' \(did you mean ridge\?\); available: ridge, tap",
        ),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path: Path, words: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compared(tmp_path, **words)
    assert not list(tmp_path.iterdir())


DIGITS = ["--data", "digits", "--metrics", "gsd,l1,own_metric:spread_of_means", "--ratios", "0.2,0.4"]
DIGITS += ["--num-images", "200"]


def test_on_digits_by_one_process_and_by_two(lenet_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = lenet_run.parent / "base" / "model.safetensors"
    own = "def spread_of_means(channels):\n    return channels.moments.mean.std(0)\n"
    (tmp_path / "own_metric.py").write_text(own)
    words = ["study", "effectiveness", f"lenet5={weights}", *DIGITS, "--device", "cpu", "--num-eval-images", "200"]
    monkeypatch.chdir(tmp_path)
    said = lines(prunus(*words, "--out", "one"))
    assert said[0] == "accuracy before repair, %, by the fraction of channels removed"
    assert said[1].split() == ["network", "metric", "0%", "20%", "40%"]
    assert [line.split()[1] for line in said[2:5]] == ["gsd", "l1", "own_metric:spread_of_means"]
    printed = torchrun("prunus", *words, "--out", "two").splitlines()
    one, study = read_study(tmp_path / "one"), read_study(tmp_path / "two")
    for row, other in zip(one["rows"], study["rows"], strict=True):
        # Other processes may use other numbers of threads, so sums differ in the last bits: one image of 200 may turn.
        assert row.pop("accuracy") == pytest.approx(other.pop("accuracy"), abs=100 / 200 + 1e-3)
        assert row == other
    assert [line.split()[:2] for line in printed[:5]] == [line.split()[:2] for line in said[:5]]
    assert study["command"].startswith("prunus study effectiveness lenet5=") and len(study["rows"]) == 9


def test_a_process_that_comes_late_does_its_own_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process looks for what is missing when the first has finished: every row is still somebody's."""

    class Waits(Exception):
        pass

    def at_once(there: Any) -> None:
        if not there():
            raise Waits

    monkeypatch.setattr(comparison, "wait_until", at_once)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(Waits):
        compared(tmp_path, metrics=["l1", "l2"])
    assert len(list((tmp_path / "rows").glob("*.json"))) == 3  # of 2 metrics x (0, 25 and 50%)
    monkeypatch.setenv("RANK", "1")
    assert len(compared(tmp_path, metrics=["l1", "l2"])) == 6


def test_a_process_gives_up_when_its_parent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([100, 100, 1])
    monkeypatch.setattr("prunus.studies.folder.os.getppid", lambda: next(parents))
    with pytest.raises(RunError, match="the process that started this one has ended"):
        wait_until(lambda: False)
