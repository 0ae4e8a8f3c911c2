"""Paired tests of two networks on the same images, beside scipy and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from prunus.errors import FileError, RunError
from prunus.run.qualities import Predictions, read_predictions, write_predictions
from prunus.tasks import TASKS, Quality, Task
from prunus.tasks.evaluate import evaluate_by_class
from prunus.tasks.paired import BOOTSTRAP, MCNEMAR, SIGNS, ByImage, ImageValues, paired_test, sign_test
from tests.tasks.nets import Answers


def by_image(task: Task, batches: list[tuple[Any, Any]]) -> ImageValues | None:
    seen = ByImage(task)
    evaluate_by_class(Answers(), batches, task, seen.add)
    return seen.result()


@pytest.mark.parametrize(
    ("better", "worse"), [(0, 0), (1, 0), (3, 10), (10, 3), (7, 7), (60, 41), (0, 40), (900, 1011)]
)
def test_the_exact_test_is_scipys(better: int, worse: int) -> None:
    want = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert sign_test(better, worse) == pytest.approx(want, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    """1 and 6 images are right in one network only: p = 2 (C(7, 0) + C(7, 1)) / 2^7 = 16 / 128."""
    first = torch.tensor([1] * 20 + [1] + [0] * 6 + [0] * 3, dtype=torch.uint8)
    second = torch.tensor([1] * 20 + [0] + [1] * 6 + [0] * 3, dtype=torch.uint8)
    found = paired_test(ImageValues(first, "x"), ImageValues(second, "x"))
    assert (found.test, found.better, found.worse, found.num_images) == (MCNEMAR, 6, 1, 30)
    assert found.p == 0.125 and found.p_text == "0.125" and found.difference == pytest.approx(5 / 30)
    # Differences are 6 times 1, once -1, else 0: their variance is (7 - 30 (5/30)^2) / 29.
    assert found.standard_error == pytest.approx(math.sqrt((7 - 25 / 30) / 29 / 30))
    assert replace(found, p=0.0004).p_text == "< 0.001"
    one, two = torch.tensor([0.5, 0.25, 0.75, 1.0]), torch.tensor([0.75, 0.5, 1.0, 1.0])  # no right and wrong answers
    found = paired_test(ImageValues(one, "x"), ImageValues(two, "x"))
    assert (found.test, found.better, found.worse, found.p) == (SIGNS, 3, 0, 0.25)


def test_other_images_are_refused() -> None:
    one = ImageValues(torch.ones(4, dtype=torch.uint8), "x")
    with pytest.raises(RunError, match="the same images: these are 4 and 5"):
        paired_test(one, ImageValues(torch.ones(5, dtype=torch.uint8), "x"))
    with pytest.raises(RunError, match="the labels of these differ"):
        paired_test(one, ImageValues(torch.ones(4, dtype=torch.uint8), "y"))
    with pytest.raises(RunError, match="needs the function of the quality"):
        paired_test(ImageValues(torch.ones(4, 2), "x"), ImageValues(torch.ones(4, 2), "x"))


def test_answers_of_each_image_are_collected() -> None:
    draw = torch.Generator().manual_seed(4)
    batches = [(torch.randn(n, 5, generator=draw), torch.arange(n) % 5) for n in (8, 3)]
    found = by_image(TASKS["classification"], batches)
    assert found is not None and found.values.dtype == torch.uint8
    want = [
        int(row.argmax()) == int(label) for images, labels in batches for row, label in zip(images, labels, strict=True)
    ]
    assert found.values.tolist() == want and 0 < sum(want) < len(want)
    backwards = by_image(TASKS["classification"], batches[::-1])
    assert backwards is not None and backwards.labels != found.labels
    whole = [(torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches]))]
    other_batches = by_image(TASKS["classification"], whole)
    assert other_batches is not None and other_batches.labels == found.labels


def test_a_bootstrap_of_a_quality_that_is_no_mean() -> None:
    """R2 of two sets of outputs: sums of single images, and a p-value near that of draws made here with numpy."""
    draw = np.random.default_rng(1)
    labels = draw.normal(size=(40, 1))
    outputs = [labels + scale * draw.normal(size=(40, 1)) for scale in (0.55, 0.45)]
    task = TASKS["regression"]
    both = [by_image(task, [(torch.tensor(out).float(), torch.tensor(labels).float())]) for out in outputs]
    assert both[0] is not None and both[1] is not None and both[0].values.shape == (40, 4, 1)
    found = paired_test(both[0], both[1], task.measured.value)

    def r2(out: Any, at: Any) -> float:
        return float(1 - ((out[at] - labels[at]) ** 2).sum() / ((labels[at] - labels[at].mean()) ** 2).sum())

    every = np.arange(40)
    assert found.test == BOOTSTRAP and found.better is None
    assert found.difference == pytest.approx(r2(outputs[1], every) - r2(outputs[0], every), rel=1e-4)
    draws = [draw.integers(0, 40, 40) for _ in range(4000)]
    apart = np.array([r2(outputs[1], at) - r2(outputs[0], at) for at in draws])
    assert found.standard_error == pytest.approx(apart.std(), rel=0.15)
    assert found.p == pytest.approx(2 * min((apart <= 0).mean(), (apart >= 0).mean()), abs=0.05)


def test_what_cannot_be_taken_apart_is_not_kept() -> None:
    def of_the_batch(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.sum(0) ** 2).double()  # does not add up over images

    def no_single_images(outputs: Tensor, labels: Tensor) -> Tensor:
        if len(outputs) == 1:
            raise ValueError("one image")
        return outputs.sum(0)

    for quality in (
        Quality(of_the_batch, value=lambda sums: float(sums.sum())),
        Quality(no_single_images, value=lambda sums: float(sums.sum())),
        Quality(lambda outputs, labels: list(outputs), value=lambda items: float(len(items)), collects=True),
    ):
        task = Task(name="own", loss=lambda out, _: out.mean(), quality=quality)
        assert by_image(task, [(torch.rand(6, 2), torch.zeros(6))]) is None


def test_the_file_keeps_values_and_refuses_others(tmp_path: Path) -> None:
    of = {
        "before": ImageValues(torch.tensor([1, 0, 1], dtype=torch.uint8), "x"),
        "after": ImageValues(torch.rand(3, 2), "y"),
    }
    path = tmp_path / "predictions.safetensors"
    assert read_predictions(path) is None
    write_predictions(path, Predictions(of, "test", "accuracy"))
    found = read_predictions(path)
    assert found is not None and (found.part, found.quality) == ("test", "accuracy")
    for name, each in of.items():
        assert torch.equal(found.of[name].values, each.values) and found.of[name].labels == each.labels
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileError, match="not a file of predictions"):
        read_predictions(path)
