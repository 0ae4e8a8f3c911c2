"""Whole runs for tasks other than classification: numbers, resuming, export, reports."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunus as pr
from prunus.report.run_page import write_report
from tests.tasks.nets import Answer, Tagger, UNet, Wrapped, squares, sums, tags

SEGMENTED = {"target": 0.3, "task": "segmentation", "epochs": 1, "lr": 0.05, "timing": False}


def trained(model: nn.Module, batches: list, task: str | pr.Task, epochs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return pr.fit(model, batches, task=task, epochs=epochs, lr=0.1).model.eval()


@pytest.fixture(scope="module")
def unet() -> nn.Module:
    torch.manual_seed(0)
    return trained(UNet(aux=True), squares(), "segmentation")


def iou(model: nn.Module, batches: list) -> float:
    """Mean IoU by its definition."""
    found = torch.cat([model(x)["out"].argmax(1) for x, _ in batches])
    there = torch.cat([y for _, y in batches])
    ratios = [((found == c) & (there == c)).sum() / ((found == c) | (there == c)).sum() for c in range(3)]
    return float(sum(ratios) / 3)


def test_a_u_net_with_an_auxiliary_head(unet: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    held, test = squares(seed=1), squares(seed=2)
    with caplog.at_level(logging.WARNING):
        result = pr.compress(unet, squares(), held, test=test, folder=tmp_path / "run", **SEGMENTED)
    assert "guessing" not in caplog.text
    assert iou(unet, test) > 0.4  # it has learned something
    with torch.no_grad():
        assert result.summary["before"]["test"]["quality"] == pytest.approx(iou(unet, test), abs=1e-3)
        assert result.summary["after"]["test"]["quality"] == pytest.approx(iou(result.model, test), abs=1e-3)
    assert result.summary["removed"]["macs"] >= 0.295
    assert result.summary["quality"] == {"name": "mean IoU", "unit": "%"}
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    page, _, table = page.partition("All settings")  # the table has the help of each setting
    assert table
    said = page + repr(result) + " ".join(result.summary["notes"])
    assert "ccuracy" not in said and "mistake" not in said and "mean IoU" in said
    again = pr.compress(unet, squares(), held, test=test, folder=tmp_path / "run", **SEGMENTED)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), result.model.parameters(), strict=True))
    small = pr.load(tmp_path / "run", UNet(aux=True)).eval()
    x = squares(seed=2)[0][0]
    assert torch.equal(small(x)["out"], result.model.eval()(x)["out"])
    exported = pr.export(small, x[:1], tmp_path / "small.onnx")
    assert exported.path.exists()


def test_masks_of_another_size_are_refused_with_reason(unet: nn.Module) -> None:
    wrong = [(x, y.float()) for x, y in squares()]
    with pytest.raises(pr.DataError, match="must be class indices"):
        pr.compress(unet, squares(), wrong, **SEGMENTED)


def test_units_are_ranked_by_mean_iou_on_all_images(unet: nn.Module) -> None:
    graph, held = pr.trace(unet, torch.zeros(1, 1, 12, 12)), squares(seed=1)
    scores = pr.score(graph, metric="l1")
    found = pr.sensitivity(graph, scores, held, task="segmentation")
    assert (found.measure, found.unit) == ("mean IoU", "%")
    with torch.no_grad():
        assert found.base_value == pytest.approx(iou(unet, held), abs=1e-3)
        for name, row in found.tried.items():
            keep = sorted(scores.values[name].argsort()[row.channels :].tolist())
            with pr.zeroed(graph, {name: keep}):
                assert row.value == pytest.approx(iou(unet, held), abs=1e-3)
            assert row.num_images == 48


def test_several_labels_per_image(tmp_path: Path) -> None:
    model = trained(Tagger(), tags(), "multilabel")
    result = pr.compress(
        model, tags(), tags(seed=1), target=0.3, task="multilabel", epochs=1, lr=0.05, distill=True, timing=False
    )
    assert result.summary["quality"]["name"] == "mean F1"
    assert result.summary["after"]["holdout"]["quality"] > 0.8
    assert result.rounds[0].retraining[0].quality is None  # it is no mean over images


def test_two_inputs_and_a_dataclass(tmp_path: Path) -> None:
    model = trained(Wrapped(), sums(), "regression", 8)
    example = tuple(x[:1] for x in sums()[0][0])
    how = {"target": 0.3, "task": "regression", "timing": False}
    result = pr.compress(model, sums(), sums(seed=1), folder=tmp_path / "run", **how)
    assert result.summary["quality"] == {"name": "R2", "unit": ""}
    before = result.summary["before"]["holdout"]["quality"]
    labels = torch.cat([y for _, y in sums(seed=1)])
    with torch.no_grad():
        errors = [(model(*x).logits[:, 0] - y).square() for x, y in sums(seed=1)]
    spread = (labels - labels.mean()).square().sum()
    assert before == pytest.approx(float(1 - torch.cat(errors).sum() / spread), abs=1e-4)
    assert result.summary["after"]["holdout"]["quality"] > before - 0.2
    assert result.summary["settings"]["metric"] == "rebuilt"
    small = pr.load(tmp_path / "run", Wrapped()).eval()
    inputs = sums(seed=1)[0][0]
    assert isinstance(small(*inputs), Answer)
    assert torch.equal(small(*inputs).logits, result.model.eval()(*inputs).logits)
    write_report(tmp_path / "run")
    pr.export(small, example, tmp_path / "small.onnx")


def test_a_task_of_ones_own_races_and_retrains() -> None:
    def count_error(outputs: Answer, labels: torch.Tensor) -> torch.Tensor:
        return -(outputs.logits[:, 0] - labels).abs()

    task = pr.Task(
        name="counting",
        inputs=lambda batch: ((batch["left"], batch["right"]), batch["count"]),
        loss=lambda outputs, labels: F.l1_loss(outputs.logits[:, 0], labels),
        quality=pr.Quality(count_error, "minus error", "people"),
    )
    batches = [{"left": a, "right": b, "count": y} for (a, b), y in sums(images=160)]
    model = trained(Wrapped(), batches, task)
    graph = pr.trace(model, (torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)))
    scores = pr.score(graph, batches, metric="reader_energy", task=task)
    exact = pr.sensitivity(graph, scores, batches, task=task, exact=True, k=1)
    raced = pr.sensitivity(graph, scores, batches, task=task, k=1)
    assert raced.ranked()[0] == exact.ranked()[0]
    assert raced.base_value == pytest.approx(exact.base_value, abs=1e-6)
    with pytest.raises(pr.ScoreError, match="separates classes"):
        pr.score(graph, batches, metric="gsd", task=task)
    example = graph.example
    how = {"task": task, "epochs": 1, "lr": 0.01, "timing": False}
    result = pr.compress(model, batches, batches, example=example, target=0.2, **how)
    assert result.summary["settings"]["task"] == "counting"
    assert "minus error" in repr(result) and "people" in repr(result)


def test_images_alone_are_enough_to_score_and_repair(unet: nn.Module) -> None:
    graph, images = pr.trace(unet, torch.zeros(1, 1, 12, 12)), squares(labels=False)
    labelled = squares()
    for metric in ("reader_energy", "act_variance", "rebuilt"):
        mine = pr.score(graph, images, metric=metric, seed=0)
        its = pr.score(graph, labelled, metric=metric, seed=0, task="segmentation")
        for name, values in mine.values.items():
            assert values == pytest.approx(its.values[name], rel=1e-6)
    plan = pr.uniform(graph, pr.score(graph, images, metric="reader_energy", num_images=20, seed=0), ratio=0.25)
    pr.repair(graph, plan, images)


def test_a_function_of_ones_own_decides_without_labels(unet: nn.Module) -> None:
    """Batches of images alone: the user's own evaluation is all that is asked."""
    images, seen = squares(labels=False), []

    def likeness(model: nn.Module, batches: list) -> pr.Evaluation:
        seen.append(len(batches))
        with torch.no_grad():
            apart = sum(F.mse_loss(model(x)["out"], unet(x)["out"]).item() for x in batches)
        return pr.Evaluation(-18.4 - apart, apart, 48)

    how = {"target": 0.3, "task": "segmentation", "metric": "reader_energy", "split": "algorithm1", "timing": False}
    result = pr.compress(unet, images, images, evaluate=likeness, **how)
    assert len(seen) > 2 and result.summary["before"]["holdout"]["quality"] == pytest.approx(-18.4)
