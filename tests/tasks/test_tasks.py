"""Tasks: their losses and qualities against the plain definitions, streamed over batches of unequal sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, jaccard_score, r2_score
from torch import Tensor
from torch.nn import functional as F

import prunus as pr
from prunus.tasks import task_of
from prunus.tasks.evaluate import evaluate_by_class
from prunus.util.batches import main_output
from tests.tasks.nets import Answers

SIZES = (5, 3, 1)


@dataclass
class Output:
    aux: Tensor
    logits: Tensor


def batches(outputs: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(outputs.split(SIZES), labels.split(SIZES), strict=True))


def test_mean_iou_is_a_ratio_of_sums_over_all_pixels() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(9, 4, 6, 5), torch.randint(0, 3, (9, 6, 5))  # class 3 is only ever predicted
    labels[torch.rand(labels.shape) < 0.2] = 255
    found = pr.evaluate(Answers(), batches(logits, labels), task="segmentation")
    counted = (labels != 255).numpy()
    there, got = labels.numpy()[counted], logits.argmax(1).numpy()[counted]
    assert found.quality == pytest.approx(jaccard_score(there, got, average="macro", labels=range(4)))
    parts = [F.cross_entropy(x, y, ignore_index=255).item() * len(x) for x, y in batches(logits, labels)]
    assert found.loss == pytest.approx(sum(parts) / 9, rel=1e-5)
    assert (found.num_images, found.top5) == (9, None)


def test_classes_that_are_nowhere_do_not_count_and_small_logits_are_interpolated() -> None:
    logits = torch.zeros(9, 5, 2)
    logits[:, 1] = 1.0  # predicts class 1 everywhere
    labels = torch.ones(9, 2, dtype=torch.long)
    labels[0, 0] = 2
    found = pr.evaluate(Answers(), batches(logits, labels), task="segmentation")
    assert found.quality == pytest.approx((17 / 18 + 0) / 2)
    logits, labels = torch.randn(9, 2, 4, 4), torch.randint(0, 2, (9, 8, 8))
    large = F.interpolate(logits, scale_factor=2, mode="bilinear")
    small, whole = (pr.evaluate(Answers(), batches(x, labels), task="segmentation") for x in (logits, large))
    assert small == whole


def test_a_class_that_is_ignored_does_not_count_in_the_mean() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(9, 3, 6, 5), torch.randint(0, 3, (9, 6, 5))
    task = pr.segmentation(ignore_index=0)
    counted = labels != 0  # 0 is predicted, though it never counts
    there, got = labels[counted].numpy(), logits.argmax(1)[counted].numpy()
    with pytest.raises(pr.DataError, match="pixels labelled -1 to 2"):
        pr.evaluate(Answers(), batches(logits, labels.masked_fill(labels == 0, -1)), task="segmentation")
    each = jaccard_score(there, got, average=None, labels=[1, 2])
    found, by_class = evaluate_by_class(Answers(), batches(logits, labels), task)
    assert found.quality == pytest.approx(each.mean())
    assert by_class is not None and by_class.values[0] is None
    assert by_class.values[1:] == pytest.approx(tuple(each))


def test_f1_and_r2_over_all_images() -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(9, 6), torch.randint(0, 2, (9, 6))
    found = pr.evaluate(Answers(), batches(logits, labels), task="multilabel")
    assert found.quality == pytest.approx(f1_score(labels.numpy(), (logits > 0).numpy(), average="macro"))
    assert found.loss == pytest.approx(F.binary_cross_entropy_with_logits(logits, labels.float()).item(), rel=1e-5)
    outputs = torch.randn(9, 1)
    numbers = outputs[:, 0] + 0.3 * torch.randn(9) + 100
    found = pr.evaluate(Answers(lambda x: x + 100), batches(outputs, numbers), task="regression")
    assert found.quality == pytest.approx(r2_score(numbers.numpy(), outputs.numpy() + 100), rel=1e-4)


def test_a_task_of_ones_own_in_a_few_lines() -> None:
    task = pr.Task(
        inputs=lambda batch: (batch["photo"], batch["people"]),
        loss=lambda outputs, labels: F.l1_loss(outputs["count"], labels),
        quality=pr.Quality(lambda outputs, labels: -(outputs["count"] - labels).abs(), "minus count error", "people"),
    )
    assert repr(task) == "Task(minus count error)"
    assert repr(pr.TASKS["regression"]) == "Task(regression: R2)"
    numbers, wrong = torch.arange(9.0), torch.tensor([0, 0, 1, 0, 2, 0, 0, 0, 3.0])
    parts = [{"photo": n + w, "people": n} for n, w in batches(numbers, wrong)]
    found = pr.evaluate(Answers(lambda x: {"count": x}), parts, task=task)
    assert found.quality == pytest.approx(-6 / 9)
    assert found.loss == pytest.approx(6 / 9)


@pytest.mark.parametrize(
    "wrap",
    [lambda x: {"aux": -x, "out": x}, lambda x: Output(-x, x), lambda x: (x, -x), lambda x: {"scores": x, "aux": -x}],
    ids=["dict", "dataclass", "tuple", "first"],
)
@pytest.mark.parametrize("task", ["classification", "multilabel", "segmentation"])
def test_auxiliary_outputs_do_not_count(wrap: Any, task: str) -> None:
    outputs = torch.randn(9, 3, 4) if task == "segmentation" else torch.randn(9, 3)
    shapes = {"classification": (9,), "multilabel": (9, 3), "segmentation": (9, 4)}
    parts = batches(outputs, torch.randint(0, 2, shapes[task]))
    assert pr.evaluate(Answers(wrap), parts, task=task) == pr.evaluate(Answers(), parts, task=task)


def test_distillation_of_dense_logits_and_of_labels() -> None:
    """Means over pixels of T^2 KL, and over labels of the binary divergence."""
    student, teacher = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)
    p, q = (np.exp(x.numpy() / 2) / np.exp(x.numpy() / 2).sum(1, keepdims=True) for x in (teacher, student))
    dense, labels = pr.TASKS["segmentation"].distil, pr.TASKS["multilabel"].distil
    assert dense is not None and labels is not None
    assert dense(student, teacher, 2.0).item() == pytest.approx(4 * (p * np.log(p / q)).sum(1).mean())
    p, q = (1 / (1 + np.exp(-x.numpy() / 3)) for x in (teacher, student))
    want = 9 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
    assert labels(student, teacher, 3.0).item() == pytest.approx(want)


def test_wrong_tasks_are_explained() -> None:
    for bins in ([], [0.5, 0.2], [1.0, 1.0], [float("nan")]):
        with pytest.raises(pr.RunError, match="bins= must be ascending borders"):
            pr.regression(bins=bins)
    with pytest.raises(pr.RunError, match="segmentation"):
        task_of("segmentaton")
    with pytest.raises(pr.RunError, match=r"a prunus\.Task, got int"):
        task_of(3)
    with pytest.raises(pr.RunError, match="no module named"):
        task_of("no_such_module:make_task")
    with pytest.raises(pr.DataError, match=r"must be class indices \[images, pixels\]"):
        pr.evaluate(Answers(), [(torch.randn(2, 3, 4), torch.zeros(2, 4))], task="segmentation")
    with pytest.raises(pr.ModelError, match="must return a tensor"):
        main_output({"boxes": [1]})
    with pytest.raises(pr.DataError, match="some labels are NaN or infinite"):
        pr.evaluate(Answers(), [(torch.ones(3), torch.tensor([1.0, float("nan"), 2.0]))], task="regression")


def test_labels_of_any_structure_count_one_value_for_each_image() -> None:
    """A list with the boxes of each image, whose numbers differ: the images are counted by the network's inputs."""
    task = pr.Task(
        loss=lambda outputs, labels: outputs.mean(),
        quality=lambda outputs, labels: torch.tensor([float(len(image["boxes"])) for image in labels]),
    )
    parts = [
        (torch.full((len(boxes), 1), value), [{"boxes": torch.zeros(n, 4)} for n in boxes])
        for value, boxes in ((1.0, (1, 2, 3)), (5.0, (4,)))
    ]
    found = pr.evaluate(Answers(), parts, task=task)
    assert (found.quality, found.loss, found.num_images) == (10 / 4, (3 * 1.0 + 5.0) / 4, 4)


MEAN_QUALITY = lambda outputs, labels: -(outputs - labels).abs()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"quality": lambda x, y: (x - y).mean()[None]}, r"one value for each image, \[5\], and gave the shape \[1\]"),
        ({"quality": lambda x, y: (x - y).repeat(2)}, r"one value for each image, \[5\], and gave the shape \[10\]"),
        ({"quality": pr.Quality(lambda x, y: [1, 2], value=sum)}, "must return a tensor of sums.* got list"),
        ({"quality": pr.Quality(lambda x, y: x, value=sum)}, r"got the shape \[3\]; the first batch gave .* \[5\]"),
        ({"quality": lambda x, y: x.fill_(float("inf"))}, "is inf, and decisions cannot be based on it"),
        ({"loss": lambda x, y: (x - y).square()}, r"loss= .* must return the mean .* it gave the shape \[5\]"),
        ({"loss": lambda x, y: 1.0}, "loss= .* must return the mean of the batch.* it gave float"),
        ({"inputs": lambda batch: batch[0]}, r"inputs= .* must return \(inputs of the network, labels\), and gave Ten"),
    ],
)
def test_functions_of_a_task_that_return_something_else_are_explained(how: dict[str, Any], said: str) -> None:
    task = pr.Task(**{"loss": F.mse_loss, "quality": MEAN_QUALITY, **how})
    with pytest.raises(pr.RunError, match=said):
        pr.evaluate(Answers(), batches(torch.arange(9.0), torch.zeros(9)), task=task)
