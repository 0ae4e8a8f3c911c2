"""What a picture of channels shows: the unit, images of classes, and feature maps against plain forward hooks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import DataError, ScoreError
from prunus.plots.choices import (
    as_pixels,
    feature_maps,
    find_unit,
    images_of,
    scores_of_unit,
    some_images,
    spread_classes,
)
from prunus.zoo.models import create
from tests.run.toys import HOLDOUT, trained
from tests.run.toys import batches as bright_corners

EXAMPLE = torch.zeros(1, 3, 6, 6)


def test_which_unit_is_meant() -> None:
    graph = pr.trace(trained(), EXAMPLE)
    assert find_unit(graph, "conv1:out") == find_unit(graph, "conv1") == "conv1:out"
    assert find_unit(graph, "conv2") == "conv1:out"  # conv2 writes to the stream: what it reads
    assert find_unit(graph) == "wide:out"  # the second private one
    assert find_unit(pr.trace(create("lenet5"), torch.zeros(1, 1, 32, 32))) == "conv2:out"
    with pytest.raises(ScoreError, match="'wide_out': did you mean wide:out"):
        find_unit(graph, "wide_out")


@pytest.mark.parametrize(("asked", "used"), [(50, 50), (None, 2000)])
def test_metrics_of_maps_use_as_many_images_as_were_asked_for(asked: int | None, used: int) -> None:
    graph = pr.trace(trained(), EXAMPLE)
    found = scores_of_unit(graph, "wide:out", bright_corners(11, 200, seed=0), ["di", "gsd"], asked, seed=0)
    assert found["di"].num_images == used and found["gsd"].num_images == (2200 if asked is None else asked)


def test_images_of_classes() -> None:
    assert spread_classes(10, 3) == [0, 4, 9] and spread_classes(2, 9) == [0, 1]
    batches = [(torch.full((2, 1, 1, 1), float(i)), torch.tensor([i % 3, 9])) for i in range(7)]
    images, labels = images_of(batches, [2, 1], 2)
    assert labels.tolist() == [2, 2, 1, 1] and images.flatten().tolist() == [2, 5, 1, 4]
    with pytest.raises(DataError, match="no image of class 5"):
        images_of(batches, [5], 1)


def test_one_image_of_each_class() -> None:
    """Another class may come in a later batch; inputs that are no images give no pictures."""
    batches = [(torch.full((3, 1, 2, 2), float(i)), torch.full((3,), i)) for i in (5, 5, 2, 9)]
    found = some_images(batches, 0, count=2)
    assert found is not None
    assert found[1] == [2, 5] and found[0][:, 0, 0, 0].tolist() == [2.0, 5.0]
    assert some_images([{"x": {"a": torch.ones(2, 3)}, "y": torch.tensor([0, 1])}], 0, 4) is None
    assert some_images([(torch.ones(2, 3), torch.tensor([0, 1]))], 0, 4) is None
    assert some_images([], 0, 4) is None


# -- feature maps


def entering(model: nn.Module, layer: str, images: Tensor) -> Tensor:
    """What a plain hook sees enter a layer."""
    seen: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    with torch.no_grad():
        model.eval()(images)
    handle.remove()
    return seen[0]


def test_maps_are_what_enters_the_readers() -> None:
    model, images = trained(), HOLDOUT[0][0][:5]
    graph = pr.trace(model, images[:1])
    found = feature_maps(graph, images, {"conv1:out": [7, 2, 23], "wide:in": [0, 5], "wide:out": [3, 11]})
    assert torch.equal(found["conv1:out"], entering(model, "conv2", images)[:, [7, 2, 23]])
    assert torch.equal(found["wide:in"], entering(model, "wide", images)[:, [0, 5]])
    # A flatten comes before fc: 16 channels of 4x4 pixels, one after the other.
    flat = entering(model, "fc", images).reshape(5, 16, 4, 4)
    assert torch.equal(found["wide:out"], flat[:, [3, 11]])


def test_the_model_is_as_it_was_also_after_an_error() -> None:
    model, images = trained(), HOLDOUT[0][0][:2]
    graph = pr.trace(model, images[:1])
    model.train()
    model.bn1.eval()  # type: ignore[operator,union-attr]
    modes = [m.training for m in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = torch.random.get_rng_state()
    feature_maps(graph, images, {"conv1:out": [0]})
    with pytest.raises(RuntimeError):
        feature_maps(graph, images[:, :2], {"conv1:out": [0]})
    for wanted, words in (({"conv9": [0]}, "conv9"), ({"conv1:out": [24]}, "0 to 23")):
        with pytest.raises(ScoreError, match=words):
            feature_maps(graph, images, wanted)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_pixels() -> None:
    grey: Any = torch.tensor([[[[-1.0, 0.0], [1.0, 3.0]]]])
    assert as_pixels(grey)[..., 0].tolist() == [[[0, 64], [128, 255]]]
    colours = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    normalised = (colours - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    expected = np.rint(255 * colours.permute(0, 2, 3, 1).numpy())
    assert np.abs(as_pixels(normalised, (mean, std)).astype(float) - expected).max() <= 1
    assert as_pixels(torch.rand(1, 4, 2, 2)).shape == (1, 2, 2, 1)
    assert not as_pixels(torch.full((1, 1, 2, 2), 7.0)).any()  # nothing to stretch
