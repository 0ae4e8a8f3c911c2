"""The quality of each class, against figures counted by hand and by scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score, jaccard_score
from torch import Tensor, nn

from prunus.tasks import TASKS
from prunus.tasks import evaluate as class_figures
from prunus.tasks.evaluate import evaluate
from prunus.tasks.evaluate import evaluate_by_class


class Answers(nn.Module):
    """Returns its input: the tests give logits as images."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


def one_hot(found: list[int], classes: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(found), classes).float()


def test_classes_by_hand() -> None:
    found, there = [0, 1, 1, 2, 0, 0], [0, 1, 2, 2, 0, 1]
    batches = [
        (one_hot(found[:4], 4), torch.tensor(there[:4])),
        (one_hot(found[4:], 4), torch.tensor(there[4:])),
    ]
    accuracy, figures = evaluate_by_class(Answers(), batches, TASKS["classification"])
    assert accuracy == evaluate(Answers(), batches)
    assert figures is not None
    assert figures.values == (1.0, 0.5, 0.5, None)  # class 3 does not occur
    assert figures.sizes == (2, 2, 2, 0)
    assert figures.confused is not None and set(figures.confused) == {(1, 0, 1), (2, 1, 1)}
    assert figures.complete


def test_confusion_as_scikit_learn_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    found, there = draw.integers(0, 6, 300), draw.integers(0, 6, 300)
    batches = [(one_hot(found.tolist(), 6), torch.from_numpy(there))]
    _, figures = evaluate_by_class(Answers(), batches, TASKS["classification"])
    matrix = confusion_matrix(there, found)
    assert figures is not None and figures.confused is not None
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


def test_numbers_have_no_classes() -> None:
    accuracy, figures = evaluate_by_class(
        Answers(), [(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 3.0]))], TASKS["regression"]
    )
    assert figures is None and accuracy.quality == pytest.approx(0.5)
