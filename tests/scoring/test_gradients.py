"""Gradients at readers and filters beside one image at a time, and losses at inner layers."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F

import prunus as pr
from prunus.scoring.gradients import DECAY, divide
from tests.scoring.toys import CLASSES, batches, settled
from tests.tasks.nets import Wrapped, sums


def four_layers() -> nn.Sequential:
    names = ["stem", "a", "b", "c", "d"]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, name in enumerate(names):
        layers[name] = nn.Conv2d(3 if place == 0 else 4, 4, 3, padding=1)
        layers[f"{name}_act"] = nn.ReLU()
    layers["pool"], layers["flat"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    layers["fc"] = nn.Linear(4, CLASSES)
    return nn.Sequential(layers)


def test_dcp_is_the_gradient_of_the_loss_at_the_end_of_the_stage() -> None:
    model = settled(four_layers())
    data = batches()
    images, labels = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    graph = pr.trace(model, images[:1])
    assert divide(graph) == [["a"], ["b"], ["c"], ["d", "fc"]]
    found = pr.score(graph, data, "dcp").values
    for name, after in (("a", "b"), ("b", "c"), ("c", "d")):
        names = [n for n, _ in model.named_children()]
        start, end = names.index(name), names.index(after)
        with torch.no_grad():
            enters = model[:start](images)
            pooled = model[:end](images).mean((2, 3))
        mean, deviation = pooled.mean(0), pooled.std(0, correction=0)
        head = LogisticRegression(C=1 / (len(labels) * DECAY), tol=1e-10, max_iter=10_000)
        head.fit(((pooled - mean) / deviation).numpy(), labels.numpy())
        weight, bias = torch.from_numpy(head.coef_), torch.from_numpy(head.intercept_)
        total = torch.zeros_like(model[start].weight)
        for image, label in zip(enters, labels, strict=True):
            leaf = model[start].weight.detach().clone().requires_grad_()
            out = F.conv2d(image[None], leaf, model[start].bias.detach(), padding=1)
            out = model[start + 1 : end](out).mean((2, 3))
            loss = F.cross_entropy((out - mean) / deviation @ weight.T + bias, label[None])
            total += torch.autograd.grad(loss, leaf)[0] / len(labels)
        wanted = total.square().sum((0, 2, 3)).numpy()
        unit = names[start - 2] + ":out"
        np.testing.assert_allclose(found[unit], wanted, rtol=2e-3, atol=1e-6 * wanted.max())
    last = model.get_submodule("d").weight
    loss = F.cross_entropy(model(images), labels)
    wanted = torch.autograd.grad(loss, last)[0].square().sum((0, 2, 3)).detach().numpy()
    np.testing.assert_allclose(found["c:out"], wanted, rtol=1e-9)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_taylor_follows_the_loss_of_the_task() -> None:
    torch.manual_seed(4)
    batches = sums()[:1]
    model = Wrapped().eval()
    graph = pr.trace(model, tuple(x[:1] for x in batches[0][0]))
    found = pr.score(graph, batches, metric="taylor", task="regression")
    inputs, labels = batches[0]
    loss = (model(*inputs).logits[:, 0] - labels).square().mean()
    (gradient,) = torch.autograd.grad(loss, [model.one.weight])
    want = (gradient * model.one.weight).abs().flatten(1).sum(1).detach().numpy()
    assert found.values["one:out"] == pytest.approx(want, rel=1e-4)
