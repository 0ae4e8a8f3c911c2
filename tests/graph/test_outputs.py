"""Networks for some of their classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prunus as pr
from prunus.errors import TraceError
from prunus.zoo.models import create


def test_the_outputs_of_the_classes_that_stay_are_the_same() -> None:
    torch.manual_seed(0)
    model, x = create("resnet8").train(), torch.randn(3, 3, 32, 32)
    small = pr.keep_classes(model, torch.zeros(1, 3, 32, 32), [7, 2, 5])
    assert small.training and model.linear.out_features == 10 and small.linear.out_features == 3
    torch.testing.assert_close(small.eval()(x), model.eval()(x)[:, [7, 2, 5]])
    graph = pr.trace(small, torch.zeros(1, 3, 32, 32))
    assert graph.layers["linear"].outputs == 3


def test_a_class_for_each_pixel() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 1)).eval()
    x = torch.randn(2, 3, 9, 9)
    small = pr.keep_classes(model, x, [0, 4])
    torch.testing.assert_close(small(x), model(x)[:, [0, 4]])


def test_what_is_refused() -> None:
    model, x = create("lenet5"), torch.zeros(1, 1, 32, 32)
    for classes, got in (([], "none"), ([3, 10], "10"), ([3, 3], "twice")):
        with pytest.raises(TraceError, match=f"from 0 to 9; got .*{got}"):
            pr.keep_classes(model, x, classes)
    mixed = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Softmax(1))
    with pytest.raises(TraceError, match="take off a softmax"):
        pr.keep_classes(mixed, torch.zeros(1, 4), [0, 1])
    summed = nn.Sequential(nn.Linear(4, 5), nn.Flatten(0))
    with pytest.raises(TraceError, match="whose only output"):
        pr.keep_classes(summed, torch.zeros(1, 4), [0, 1])
