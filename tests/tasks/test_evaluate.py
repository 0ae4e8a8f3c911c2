"""evaluate() against scikit-learn on the same logits, and what it must refuse and leave alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, jaccard_score, log_loss, top_k_accuracy_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from prunus.errors import DataError, ModelError, RunError
from prunus.tasks import TASKS
from prunus.tasks import evaluate as class_figures
from prunus.tasks.evaluate import Evaluation, evaluate, evaluate_by_class, too_good
from tests.tasks.nets import Answers


class Table(nn.Module):
    """Its logits are its images, so that the right answers are known without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.weight = nn.Parameter(torch.ones(1))
        self.saw_gradients: list[bool] = []
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.saw_gradients.append(torch.is_grad_enabled())
        self.modes.append(self.norm.training)
        return images.flatten(1) * self.weight


def batches(classes: int, sizes: tuple[int, ...] = (7, 7, 3)) -> list[tuple[Tensor, Tensor]]:
    draw = np.random.default_rng(classes)
    pairs = [(draw.normal(size=(n, classes, 1, 1)), draw.integers(0, classes, n)) for n in sizes]
    return [(torch.from_numpy(images).float(), torch.from_numpy(labels)) for images, labels in pairs]


def flat(data: list[tuple[Tensor, Tensor]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    logits = torch.cat([images.flatten(1) for images, _ in data]).double().numpy()
    return logits, torch.cat([labels for _, labels in data]).numpy()


@pytest.mark.parametrize("classes", [10, 37])
def test_equals_scikit_learn_with_an_uneven_last_batch(classes: int) -> None:
    data = batches(classes)
    logits, labels = flat(data)
    odds = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = evaluate(Table(), data)
    every = np.arange(classes)
    assert found.num_images == 17
    assert found.quality == pytest.approx(accuracy_score(labels, logits.argmax(1)), abs=1e-12)
    assert found.top5 == pytest.approx(top_k_accuracy_score(labels, logits, k=5, labels=every), abs=1e-12)
    assert found.loss == pytest.approx(log_loss(labels, odds, labels=every), rel=1e-6)


def test_top5_is_left_out_below_ten_classes_and_equal_logits_are_not_all_correct() -> None:
    assert evaluate(Table(), batches(9)).top5 is None and evaluate(Table(), batches(10)).top5 is not None

    # A dead network answers zeros; counting ties as hits would call it perfect.
    data = [(torch.zeros(20, 10), torch.arange(20) % 10)]
    found = evaluate(Answers(lambda x: x.to(torch.bfloat16)), data)  # logits in half precision, a loss in float32
    assert found.quality == pytest.approx(0.1) and found.loss == pytest.approx(np.log(10), rel=1e-6)


def test_dicts_of_images_inputs_and_answers() -> None:
    class Sum(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"hidden": left, "logits": left + right}

    data = batches(10)
    for image_key, label_key in (("image", "label"), ("pixel_values", "labels"), ("x", "y")):
        dicts = [{image_key: images, label_key: labels.to(torch.uint8)} for images, labels in data]
        assert evaluate(Table(), dicts) == evaluate(Table(), data)
    images, labels = torch.eye(10), torch.arange(10)
    assert evaluate(Sum(), [((images, images), labels)]).quality == 1.0
    assert evaluate(Sum(), [({"left": images, "right": -2 * images}, labels)]).quality == 0.0


def test_modes_gradients_and_generators_are_as_found() -> None:
    model = Table().train()
    model.norm.eval()  # frozen inside a training model
    loader = DataLoader(TensorDataset(*map(torch.cat, zip(*batches(10), strict=True))), batch_size=4, shuffle=True)
    drawn = []
    for work in (lambda: None, lambda: evaluate(model, loader)):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        work()
        drawn.append((torch.rand(1), random.random(), np.random.rand()))  # noqa: NPY002
    assert drawn[0] == drawn[1]
    assert model.training and not model.norm.training and model.weight.requires_grad
    assert set(model.saw_gradients) == {False} and set(model.modes) == {False}
    model.norm.train()
    with pytest.raises(DataError):
        evaluate(model, [(torch.zeros(2, 10), torch.tensor([0, 10]))])
    assert model.training and model.norm.training


def test_progress_is_told_of_every_batch() -> None:
    told: list[tuple[int, int | None]] = []
    for loader in (batches(10), iter(batches(10))):
        evaluate(Table(), loader, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3), (1, None), (2, None), (3, None)]


IMAGES = torch.zeros(2, 10)


@pytest.mark.parametrize(
    "loader, message",
    [
        ([], "no images"),
        ([(IMAGES, torch.tensor([0, 10]))], r"batch 0 has labels from 0 to 10.*10 classes, 0 to 9"),
        ([(IMAGES, torch.tensor([0, 1])), (IMAGES, torch.tensor([-1, 1]))], "batch 1 has labels from -1 to 1"),
        ([(IMAGES, torch.tensor([0.0, 1.0]))], "integers.*float32"),
        ([(IMAGES, torch.tensor([True, False]))], "integers.*bool"),
        ([(IMAGES, torch.tensor([[0], [1]]))], r"shape \[N\].*\[2, 1\]"),
        ([(IMAGES, [0, 1])], "tensor of class indices.*list"),
        ([(IMAGES, torch.tensor([0, 1, 2]))], r"for 3 labels.*\[2, 10\]"),
        ([(IMAGES,)], "no labels.*task=prunus.agreement"),
        ([IMAGES], "batch 0 has no labels"),
        ([{"pictures": IMAGES, "labels": torch.tensor([0, 1])}], r"keys \['labels', 'pictures'\]"),
        ([("cat.png", torch.tensor([0]))], "images must be tensors.*str"),
    ],
)
def test_bad_batches_are_named(loader: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(Table(), loader)


def test_a_model_without_logits_and_a_device_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="not str"):
        evaluate(Answers(lambda _: "cat"), batches(10))
    with pytest.raises(RunError, match="'gpu' cannot be used"):
        evaluate(Table(), batches(10), device="gpu")
    assert evaluate(Table(), batches(10), device="cpu") == evaluate(Table(), batches(10))


@pytest.mark.parametrize(
    "top1, images, suspicious",
    [(1.0, 1000, True), (0.998, 1000, True), (1.0, 499, False), (0.9949, 10_000, False), (0.995, 500, True)],
)
def test_suspiciously_perfect(top1: float, images: int, suspicious: bool) -> None:
    warning = too_good(Evaluation(top1, 0.01, images))
    assert (warning is not None) == suspicious
    assert warning is None or (f"{100 * top1:.2f}%" in warning and "test:0.5" in warning)


def one_hot(found: list[int], classes: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(found), classes).float()


def test_confusion_as_scikit_learn_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    found, there = draw.integers(0, 6, 300), draw.integers(0, 6, 300)
    batches = [(one_hot(found.tolist(), 7), torch.from_numpy(there))]  # class 6 does not occur
    accuracy, figures = evaluate_by_class(Answers(), batches, TASKS["classification"])
    matrix = confusion_matrix(there, found, labels=range(7))
    assert figures is not None and figures.confused is not None and accuracy == evaluate(Answers(), batches)
    assert figures.values == (*pytest.approx(matrix.diagonal()[:6] / matrix.sum(1)[:6]).expected, None)
    assert figures.sizes == tuple(matrix.sum(1)) and figures.complete
    assert {(a, b): n for a, b, n in figures.confused} == {
        (a, b): matrix[a, b] for a in range(6) for b in range(6) if a != b and matrix[a, b]
    }
    counts = [n for _, _, n in figures.confused]
    assert counts == sorted(counts, reverse=True)
    monkeypatch.setattr(class_figures, "MOST_PAIRS", 5)
    _, few = evaluate_by_class(Answers(), batches, TASKS["classification"])
    assert few is not None and few.confused == figures.confused[:5] and not few.complete
    monkeypatch.setattr(class_figures, "MOST_CLASSES", 5)
    assert evaluate_by_class(Answers(), batches, TASKS["classification"])[1] is None


def test_segmentation_and_labels_as_scikit_learn_counts_them() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 3, 5, 5, generator=draw), torch.randint(0, 3, (4, 5, 5), generator=draw)
    labels[0, 0] = 255  # ignored
    accuracy, figures = evaluate_by_class(Answers(), [(logits, labels)], TASKS["segmentation"])
    counted = labels != 255
    wanted = jaccard_score(labels[counted].numpy(), logits.argmax(1)[counted].numpy(), average=None)
    assert figures is not None and figures.values == pytest.approx(wanted.tolist())
    assert accuracy.quality == pytest.approx(wanted.mean())
    assert sum(figures.sizes) == 95 and figures.confused is not None

    logits, present = torch.randn(20, 4, generator=draw), torch.randint(0, 2, (20, 4), generator=draw)
    accuracy, figures = evaluate_by_class(Answers(), [(logits, present)], TASKS["multilabel"])
    wanted = f1_score(present.numpy(), (logits > 0).numpy(), average=None)
    assert figures is not None and figures.values == pytest.approx(wanted.tolist())
    assert figures.confused is None and figures.sizes == tuple(present.sum(0).tolist())

    numbers = [(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 3.0]))]
    accuracy, figures = evaluate_by_class(Answers(), numbers, TASKS["regression"])
    assert figures is None and accuracy.quality == pytest.approx(0.5)
