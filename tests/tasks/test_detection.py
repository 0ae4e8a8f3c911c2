"""The task `detection`: average precision by hand and by torchmetrics, the choice of boxes, labels that do not fit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import prunus as pr
from prunus.errors import DataError, ModelError, RunError
from prunus.scoring.passes import sampled
from prunus.tasks.detection import (
    Boxes,
    DetectedImage,
    at_overlaps,
    average_precision,
    decode_tensor,
    precisions,
    scaled_back,
    suppress,
)
from prunus.tasks.evaluate import evaluate_by_class, tensors_of
from tests.networks import from_torchvision
from tests.tasks import scenes
from tests.tasks.nets import Answers


def fixed(answer: Any) -> Answers:
    """A network that returns the same predictions for every batch."""
    return Answers(lambda _: answer)


def row(boxes: list[list[float]], scores: list[float], labels: list[int]) -> dict[str, Tensor]:
    return {
        "boxes": torch.tensor(boxes).reshape(-1, 4),
        "scores": torch.tensor(scores),
        "labels": torch.tensor(labels, dtype=torch.long),
    }


TRUE = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 40.0, 40.0]]), "labels": torch.tensor([0, 0])}
IMAGE = torch.zeros(1, 3, 8, 8)


def test_average_precision_by_hand() -> None:
    # The best box is right, the second wrong, the third right: precision 1 up to recall 0.5, then 2/3.
    answer = [row([[0, 0, 10, 10], [50, 50, 60, 60], [20, 20, 40, 40]], [0.9, 0.8, 0.7], [0, 0, 0])]
    measured = pr.evaluate(fixed(answer), [(IMAGE, [TRUE])], task="detection")
    assert measured.quality == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert measured.details["AP50"] == pytest.approx(measured.quality)
    decoded = pr.detection(decode=lambda output: [dict(zip(("boxes", "scores", "labels"), output, strict=True))])
    assert pr.evaluate(fixed(tuple(answer[0].values())), [(IMAGE, [TRUE])], task=decoded) == measured
    # F1 of three boxes for two objects, two of them right: 4/5.
    assert measured.loss == pytest.approx(1 - 4 / 5)
    # Moved by 2 of 20 pixels, the larger box overlaps by 18*20 / (2*400 - 360) = 0.818: right up to 0.8.
    answer = [row([[0, 0, 10, 10], [22, 20, 42, 40]], [0.9, 0.8], [0, 0])]
    measured = pr.evaluate(fixed(answer), [(IMAGE, [TRUE])], task="detection")
    assert measured.quality == pytest.approx((7 * 1.0 + 3 * 51 / 101) / 10)


def test_without_labels_the_boxes_of_the_original_are_the_labels() -> None:
    # The network of the test above, against an original whose sure boxes are those of its labels.
    answer = [row([[0, 0, 10, 10], [50, 50, 60, 60], [20, 20, 40, 40]], [0.9, 0.8, 0.7], [0, 0, 0])]
    sides = [[0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 60], [70, 70, 70, 90]]
    original = fixed([row(sides, [0.6, 0.3, 0.2, 0.9], [0, 0, 0, 0])])  # one is not sure, one is empty
    task = pr.agreement(original, "detection")
    assert task.measured.name == "AP50-95 against the original"
    measured = pr.evaluate(fixed(answer), [IMAGE], task=task)
    assert measured.quality == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert measured.loss == pytest.approx(1 - 4 / 5)
    wrong = [{"boxes": torch.tensor([[1.0, 1.0, 2.0, 2.0]]), "labels": torch.tensor([1])}]
    assert pr.evaluate(fixed(answer), [(IMAGE, wrong)], task=task) == measured  # labels are not read
    itself = fixed(answer)
    assert pr.evaluate(itself, [IMAGE], task=pr.agreement(itself, "detection")).quality == 1.0
    with pytest.raises(DataError, match=r"found nothing with a score of 0\.25 or more"):
        pr.evaluate(fixed(answer), [IMAGE], task=pr.agreement(fixed([row([[0, 0, 9, 9]], [0.2], [0])]), "detection"))


def test_nothing_found_nothing_there_and_crowds() -> None:
    nothing = [row([], [], [])]
    assert pr.evaluate(fixed(nothing), [(IMAGE, [TRUE])], task="detection").quality == 0.0
    empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    with pytest.raises(DataError, match="no image has a box"):
        pr.evaluate(fixed(nothing), [(IMAGE, [empty])], task="detection")
    # An image without objects in which a box is found costs precision.
    both = [(torch.zeros(2, 3, 8, 8), [{**TRUE}, empty])]
    found = [row(TRUE["boxes"].tolist(), [0.9, 0.8], [0, 0]), row([[0, 0, 5, 5]], [0.95], [0])]
    assert pr.evaluate(fixed(found), both, task="detection").quality == pytest.approx(2 / 3)
    # Crowds are neither asked for nor counted.
    labels = [{**TRUE, "crowd": torch.tensor([False, True])}]
    answer = [row([[22, 22, 30, 30], [0, 0, 10, 10]], [0.9, 0.8], [0, 0])]  # the first lies in the crowd
    assert pr.evaluate(fixed(answer), [(IMAGE, labels)], task="detection").quality == pytest.approx(1.0)


def random_items(images: int = 25) -> list[DetectedImage]:
    draw, items = torch.Generator().manual_seed(0), []
    for _ in range(images):
        count = int(torch.randint(0, 6, (), generator=draw))
        corner = 80 * torch.rand(count, 2, generator=draw)
        boxes = torch.cat([corner, corner + 8 + 40 * torch.rand(count, 2, generator=draw)], 1)
        labels = torch.randint(0, 4, (count,), generator=draw)
        found = torch.cat([boxes + 2 * torch.randn(count, 4, generator=draw), torch.tensor([[1.0, 1, 9, 9]])])
        scores, kinds = torch.rand(count + 1, generator=draw), torch.cat([labels, torch.tensor([1])])
        items.append(DetectedImage(Boxes(found, scores, kinds, 5), boxes, labels, torch.zeros(count, dtype=torch.bool)))
    return items


def test_average_precision_is_that_of_torchmetrics() -> None:
    from_torchvision.library()  # which torchmetrics imports
    from torchmetrics.detection import MeanAveragePrecision

    items = random_items()
    recalls = np.linspace(0, 1, 101).tolist()
    other = MeanAveragePrecision(class_metrics=True, rec_thresholds=recalls)
    other.update(
        [{"boxes": i.found.boxes, "scores": i.found.scores, "labels": i.found.labels} for i in items],
        [{"boxes": i.boxes, "labels": i.labels} for i in items],
    )
    its = other.compute()
    assert average_precision(items) == pytest.approx(float(its["map"]), abs=1e-4)
    mine = at_overlaps(items)
    assert [mine["AP50"], mine["AP75"]] == pytest.approx([float(its["map_50"]), float(its["map_75"])], abs=1e-4)
    by_class = precisions(items).mean(0)
    assert by_class[:4].tolist() == pytest.approx(its["map_per_class"].tolist(), abs=1e-4)
    assert len(by_class) == 5 and by_class[4].isnan()  # a class of the network that no image has


def test_suppression_is_that_of_the_definition() -> None:
    draw = torch.Generator().manual_seed(3)
    corner = 30 * torch.rand(60, 2, generator=draw)
    found = Boxes(
        torch.cat([corner, corner + 5 + 10 * torch.rand(60, 2, generator=draw)], 1),
        torch.rand(60, generator=draw),
        torch.randint(0, 2, (60,), generator=draw),
    )
    kept: list[int] = []
    for place in found.scores.argsort(descending=True).tolist():
        x1, y1, x2, y2 = found.boxes[place].tolist()
        free = True
        for other in kept:
            a1, b1, a2, b2 = found.boxes[other].tolist()
            both = max(0.0, min(x2, a2) - max(x1, a1)) * max(0.0, min(y2, b2) - max(y1, b1))
            union = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - both
            free &= both / union <= 0.4 or found.labels[place] != found.labels[other]
        if free:
            kept.append(place)
    mine = suppress(found, overlap=0.4)
    assert torch.equal(mine.boxes, found.boxes[kept]) and 10 < len(kept) < 55
    assert torch.equal(suppress(found, 0.4, most=3).scores, found.scores[kept[:3]])


def test_tensors_of_yolo_are_understood() -> None:
    raw = torch.zeros(1, 4 + 2, 5)
    raw[0, :4, 1] = torch.tensor([20.0, 10.0, 8.0, 4.0])  # centre, width, height
    raw[0, 4:, 1] = torch.tensor([0.9, 0.4])
    (one,) = decode_tensor(raw)
    assert one.boxes.tolist() == [[16, 8, 24, 12]] * 2 and one.classes == 2
    assert one.labels.tolist() == [0, 1] and one.scores.tolist() == pytest.approx([0.9, 0.4])
    ends = torch.zeros(2, 300, 6)
    ends[1, 7] = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5, 3.0])
    first, second = decode_tensor(ends)
    assert len(first.scores) == 0 and second.labels.tolist() == [3] and second.boxes.tolist() == [[1, 2, 3, 4]]
    # In eval mode a pair, in training mode the maps alone; both have the same tensors for a teacher.
    maps = {"boxes": torch.ones(1, 64, 5), "scores": torch.ones(1, 2, 5), "feats": [torch.ones(1, 7, 2, 2)]}
    task = pr.detection()
    assert task.outputs is not None
    evaluated, training = task.outputs((raw, maps)), task.outputs(maps)
    assert [len(list(tensors_of(each))) for each in (evaluated, training)] == [2, 2]
    assert evaluated.decodes and not training.decodes
    assert float(task.loss(training, [TRUE])) == 0.0


def test_boxes_are_scaled_back_and_cut_off() -> None:
    frame = torch.tensor([2.0, 0.0, 20.0, 40.0, 20.0])  # 40 x 20 pixels, twice as large, 20 pixels below the top
    boxes = torch.tensor([[10.0, 30.0, 20.0, 40.0], [60.0, 0.0, 100.0, 90.0]])
    assert scaled_back(boxes, frame).tolist() == [[5, 5, 10, 10], [30, 0, 40, 20]]
    assert scaled_back(boxes, None) is boxes


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.zeros(1), "a list with a dict of boxes"),
        ([{"boxes": torch.zeros(1, 4)}], "a list with a dict of boxes"),
        ([{"boxes": torch.zeros(2, 4), "labels": torch.tensor([0])}], r"\[2, 4\] and \[1\]"),
        ([{"boxes": torch.tensor([[5.0, 0, 2, 3]]), "labels": torch.tensor([0])}], "x1 < x2 and y1 < y2"),
        ([{"boxes": torch.tensor([[0.0, 0, 2, 3]]), "labels": torch.tensor([2])}], "2 classes, 0 to 1"),
        ([{"boxes": torch.tensor([[0.0, 0, 2, 3]]), "labels": torch.tensor([-1])}], "-1 to -1"),
        ([TRUE, TRUE], "boxes for 1 images, and 2 have labels"),
    ],
)
def test_labels_that_do_not_fit(labels: Any, said: str) -> None:
    raw = torch.zeros(1, 4 + 2, 5)
    with pytest.raises(DataError, match=said):
        pr.evaluate(fixed(raw), [(IMAGE, labels)], task="detection")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.zeros(1, 5), "pass a decoder"),
        (torch.full((1, 6, 5), 3.0), "probabilities of classes"),
        ([{"boxes": torch.zeros(1, 4), "scores": torch.ones(1)}], "boxes .n, 4., scores .n. and labels"),
        ([{"boxes": torch.zeros(1, 5), "scores": torch.ones(1), "labels": torch.ones(1)}], r"\[n, 4\]"),
    ],
)
def test_outputs_that_are_not_understood(answer: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        pr.evaluate(fixed(answer), [(IMAGE, [TRUE])], task="detection")


def test_items_are_one_for_each_image() -> None:
    with pytest.raises(RunError, match="needs value="):
        pr.Quality(lambda outputs, labels: [], collects=True)
    few = pr.Quality(lambda outputs, labels: [0], "few", value=lambda items: 1.0, collects=True)
    task = dataclasses.replace(pr.detection(), quality=few)
    with pytest.raises(RunError, match="one for each of 2 images; got 1 items"):
        pr.evaluate(fixed([row([], [], [])] * 2), [(torch.zeros(2, 3, 8, 8), [TRUE, TRUE])], task=task)


def test_labels_are_sampled_with_their_images() -> None:
    # Two images with two boxes each: the rows of a dict are boxes, not images.
    labels = [{**TRUE}, {"boxes": TRUE["boxes"] + 1, "labels": TRUE["labels"]}]
    batch = (torch.arange(2.0).reshape(2, 1, 1, 1), labels)
    for seed in range(4):
        for images, some in sampled([batch, batch], 2, seed, pr.detection()):
            for image, one in zip(images, some, strict=True):
                assert torch.equal(one["boxes"], TRUE["boxes"] + float(image))


def test_pruned_repaired_and_mimicked_and_each_class() -> None:
    model = scenes.trained(steps=160)
    train, holdout, test = scenes.batches(48, 1), scenes.batches(32, 5), scenes.batches(32, 6)
    result = pr.compress(model, train, holdout, test=test, target=0.3, task="detection", timing=False, mimic=4)
    summary = result.summary
    before, after = (summary[when]["test"] for when in ("before", "after"))
    assert before["quality"] > 0.5 and before["details"]["AP50"] > 0.9
    assert after["details"]["AP50"] > 0.6
    assert summary["quality"] == {"name": "AP50-95", "unit": "%"}
    whole, classes = evaluate_by_class(model, test, pr.detection())
    assert classes is not None and classes.sizes == (32, 32)
    values = [value for value in classes.values if value is not None]
    assert sum(values) / 2 == pytest.approx(whole.quality) == pytest.approx(before["quality"])


@pytest.mark.parametrize("part", ["holdout", "test"])
def test_wrong_classes_are_found_before_anything_is_measured(part: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = {name: scenes.batches(8, seed) for seed, name in enumerate(("train", "holdout", "test"))}
    parts[part][0][1][3]["labels"][0] = 7
    how: dict[str, Any] = {"target": 0.3, "task": "detection", "timing": False, "folder": tmp_path / "run"}
    with pytest.raises(DataError, match=f"{part}: batch 0, image 3 has boxes of the classes 1 to 7, .* 2 classes"):
        pr.compress(scenes.Detector(), parts["train"], parts["holdout"], test=parts["test"], **how)
    assert not (tmp_path / "run").exists()


def test_training_needs_a_loss_of_the_detector() -> None:
    torch.manual_seed(0)
    model, train = scenes.Detector(), scenes.batches(16)
    with pytest.raises(RunError, match="has no gradient"):
        pr.fit(model, train, train, epochs=1, lr=0.01, task="detection", progress=False)
    task = pr.detection(loss=scenes.loss)
    fitted = pr.fit(model, train * 4, train, epochs=2, lr=0.01, task=task, progress=False)
    losses = [epoch.loss for epoch in fitted.history]
    assert losses[1] < losses[0]
