"""Folding batch norms: exact by hand and on whole networks, and skipped where it would not be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prunus.errors import ModelError, TraceError
from prunus.ship.fold import fold_batch_norm
from prunus.zoo.models import create
from tests.ship.nets import network, pictures, pruned


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def test_one_weight_by_hand() -> None:
    """2 x + 1, then (y - 3) / sqrt(3 + 1) x 5 + 7: 5 x + 2."""
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=1.0))
    with torch.no_grad():
        model[0].weight.fill_(2), model[0].bias.fill_(1)
        model[1].running_mean.fill_(3), model[1].running_var.fill_(3)
        model[1].weight.fill_(5), model[1].bias.fill_(7)
    folded = fold_batch_norm(model, torch.ones(2, 1))
    assert (folded[0].weight.item(), folded[0].bias.item()) == (5.0, 2.0)
    assert isinstance(folded[1], nn.Identity)
    assert not folded.training
    assert model.training
    assert model[0].weight.item() == 2.0


def test_a_pruned_network_keeps_its_function_and_its_selection() -> None:
    model, _ = pruned()
    model.eval()
    folded = fold_batch_norm(model, pictures(2))
    assert norms(folded) == ["before"]  # it follows an addition, so there is no layer to fold it into
    with torch.no_grad():
        want, got = model(pictures(16, seed=1)), folded(pictures(16, seed=1))
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert norms(model) == ["norm", "norm1", "norm2", "before"]


@pytest.mark.parametrize(("name", "left"), [("resnet8", 0), ("preresnet20", 10)])
def test_networks_of_the_zoo(name: str, left: int) -> None:
    torch.manual_seed(0)
    model = create(name)
    model(torch.randn(8, 3, 32, 32))  # statistics that are not 0 and 1
    model.eval()
    images = torch.randn(4, 3, 32, 32)
    folded = fold_batch_norm(model, images)
    with torch.no_grad():
        want, got = model(images), folded(images)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()
    assert len(norms(folded)) == left


def test_shared_layers_are_not_folded() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.other = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.norm(y) + self.other(self.conv(y))

    assert norms(fold_batch_norm(Shared(), pictures(2))) == ["norm", "other"]


def test_a_layer_that_does_not_behave_like_its_class_is_an_error() -> None:
    class Shifted(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1

    model = nn.Sequential(Shifted(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten())
    with torch.no_grad():
        model[1].weight.fill_(3)
    with pytest.raises(ModelError, match="of Sequential is not exact: its outputs differ by"):
        fold_batch_norm(model, pictures(2))


def test_the_example_must_fit() -> None:
    with pytest.raises(TraceError, match="does not run on the example"):
        fold_batch_norm(network(), torch.zeros(1, 5, 8, 8))
