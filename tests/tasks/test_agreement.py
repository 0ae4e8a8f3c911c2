"""Agreement with the original network, against numbers by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.tasks.agreement import agreement
from tests.tasks.nets import Answers, UNet, squares


class Shifted(nn.Module):
    """The outputs of another network, and something added to them."""

    def __init__(self, inner: nn.Module, shift: Any) -> None:
        super().__init__()
        self.inner, self.shift = inner, shift
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.shift(self.inner(x))


def logits(images: int = 40, classes: int = 5, seed: int = 0) -> torch.Tensor:
    return torch.randn(images, classes, generator=torch.Generator().manual_seed(seed))


def test_classes() -> None:
    """The network returns its input, so that its logits are known; the other one adds noise to them."""
    x, noise = logits(), logits(seed=1)
    other = Shifted(Answers(), lambda out: out + noise[: len(out)])
    task = agreement(Answers())
    assert task.measured.name == "agreement with the original" and task.classes is None and task.chance is None
    assert pr.evaluate(Answers(), [x], task=task).quality == 1
    found = pr.evaluate(other, [x], task=task)
    expected = ((x + noise).numpy().argmax(1) == x.numpy().argmax(1)).mean()
    assert 0.1 < expected < 0.9
    assert found.quality == pytest.approx(expected)

    def softmax(z: Any) -> Any:
        powers = np.exp(z.astype(np.float64))
        return powers / powers.sum(1, keepdims=True)

    p, q = softmax(x.numpy()), softmax((x + noise).numpy())
    assert found.loss == pytest.approx(float((p * np.log(p / q)).sum(1).mean()), rel=1e-5)
    # Labels beside the images are not read.
    assert pr.evaluate(other, [(x, torch.zeros(40, dtype=torch.long))], task=task) == found
    first, second = np.sort(x.numpy(), 1)[:, -1], np.sort(x.numpy(), 1)[:, -2]
    assert task.margins is not None
    np.testing.assert_allclose(task.margins(x, x).numpy(), first - second, rtol=1e-5)


def test_pixels() -> None:
    model, images = UNet(aux=True).eval(), squares(16, labels=False)
    torch.manual_seed(0)
    other = Shifted(model, lambda out: {"out": out["out"] + 0.2 * torch.randn_like(out["out"])})
    with torch.no_grad():
        torch.manual_seed(1)
        want, got = model(images[0])["out"], other(images[0])["out"]
    torch.manual_seed(1)
    found = pr.evaluate(other, images, task=agreement(model, "segmentation"))
    assert found.quality == pytest.approx(float((want.numpy().argmax(1) == got.numpy().argmax(1)).mean()))
    assert found.quality < 1


def test_distance() -> None:
    """1 - squared errors / variance about the means of channels, whatever their offsets; two tensors of a dict."""
    x = torch.cat([logits(30, 2), logits(30, 2, seed=2)], 1).double() * torch.tensor([1.0, 3.0, 0.1, 1.0])
    x = x + torch.tensor([0.0, 500.0, -20.0, 7.0])
    noise = 0.3 * logits(30, 4, seed=3).double()

    def parts(out: torch.Tensor) -> dict[str, Any]:
        return {"numbers": out[:, :2], "map": out[:, 2:, None].expand(-1, -1, 3), "constant": torch.ones(len(out), 4)}

    original = Answers(parts)
    other = Shifted(Answers(), lambda out: parts(out + noise[:10] if len(out) == 10 else out + noise[10:]))
    task = pr.Task(loss=lambda out, _: out["map"].mean(), quality=lambda out, _: out["map"].mean((1, 2)))
    found = pr.evaluate(other, [x[:10], x[10:]], task=agreement(original, task))
    values, errors = x.numpy(), noise.numpy()
    shares = [
        1 - (errors[:, part] ** 2).sum() / ((values[:, part] - values[:, part].mean(0)) ** 2).sum()
        for part in (slice(0, 2), slice(2, 4))
    ]
    assert found.quality == pytest.approx(np.mean(shares), rel=1e-9)
    assert pr.evaluate(original, [x], task=agreement(original, task)).quality == 1
    with pytest.raises(pr.DataError, match="the same output for all images"):
        pr.evaluate(original, [x[:1].expand(4, 4)], task=agreement(original, task))


def test_answers_to_the_same_images_are_computed_once() -> None:
    original = Shifted(Answers(), lambda out: 2 * out)
    task = agreement(original)
    x = logits()
    for _ in range(3):
        pr.evaluate(Answers(), [x[:20], x[20:]], task=task)
    assert original.calls == 2
    pr.evaluate(Answers(), [x[:20] + 1], task=task)
    assert original.calls == 3


def test_an_original_without_answers() -> None:
    with pytest.raises(pr.ModelError, match="the original network's outputs are NaN or infinite"):
        pr.evaluate(Answers(), [logits()], task=agreement(Answers(lambda x: x / 0)))
