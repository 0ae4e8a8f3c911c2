"""The unit and the images that a figure shows."""

from __future__ import annotations

import pytest
import torch

import prunus as sc
from prunus.errors import DataError, ScoreError
from prunus.plots.choices import find_unit, images_of, scores_of_unit, some_images, spread_classes
from prunus.zoo.models import create
from tests.run.toys import batches as bright_corners
from tests.run.toys import trained

EXAMPLE = torch.zeros(1, 3, 6, 6)


def test_which_unit_is_meant() -> None:
    graph = sc.trace(trained(), EXAMPLE)
    assert find_unit(graph, "conv1:out") == find_unit(graph, "conv1") == "conv1:out"
    assert find_unit(graph, "conv2") == "conv1:out"  # conv2 writes to the stream: what it reads
    assert find_unit(graph) == "wide:out"  # the second private one
    assert find_unit(sc.trace(create("lenet5"), torch.zeros(1, 1, 32, 32))) == "conv2:out"
    with pytest.raises(ScoreError, match="'wide_out': did you mean wide:out"):
        find_unit(graph, "wide_out")


@pytest.mark.parametrize(("asked", "used"), [(2100, 2100), (50, 50), (None, 2000)])
def test_metrics_of_maps_use_as_many_images_as_were_asked_for(asked: int | None, used: int) -> None:
    graph = sc.trace(trained(), EXAMPLE)
    found = scores_of_unit(graph, "wide:out", bright_corners(11, 200, seed=0), ["di", "gsd"], asked, seed=0)
    assert found["di"].num_images == used and found["gsd"].num_images == (2200 if asked is None else asked)


def test_images_of_classes() -> None:
    assert spread_classes(10, 3) == [0, 4, 9] and spread_classes(2, 9) == [0, 1]
    batches = [(torch.full((2, 1, 1, 1), float(i)), torch.tensor([i % 3, 9])) for i in range(7)]
    images, labels = images_of(batches, [2, 1], 2)
    assert labels.tolist() == [2, 2, 1, 1] and images.flatten().tolist() == [2, 5, 1, 4]
    with pytest.raises(DataError, match="no image of class 5"):
        images_of(batches, [5], 1)


def test_inputs_that_are_no_images_give_no_pictures() -> None:
    assert some_images([{"x": {"a": torch.ones(2, 3)}, "y": torch.tensor([0, 1])}], 0, 4) is None
    assert some_images([(torch.ones(2, 3), torch.tensor([0, 1]))], 0, 4) is None
    assert some_images([], 0, 4) is None


def test_another_class_may_come_in_a_later_batch() -> None:
    batches = [(torch.full((3, 1, 2, 2), float(i)), torch.full((3,), i)) for i in (5, 5, 2, 9)]
    found = some_images(batches, 0, count=2)
    assert found is not None
    assert found[1] == [2, 5] and found[0][:, 0, 0, 0].tolist() == [2.0, 5.0]
