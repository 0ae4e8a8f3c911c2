"""Sparsity training and soft filter pruning beside plain loops that follow their publications."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import RunError
from prunus.train.fit import fit
from prunus.train.settings import Preset
from tests.train.toys import batches, network

FLAT = Preset("flat", epochs=3, lr=0.05, batch_size=8, milestones=())
DATA = batches(6)


def loop(epochs: int = 3, penalty: float = 0.0, proximal: float = 0.0, after_epoch: Any = None) -> nn.Module:
    """SGD by hand. penalty x sign(scale) is added to the gradient of each batch-norm scale; with `proximal`, the scales
    are soft-thresholded with momentum instead."""
    model = copy.deepcopy(network()).train()
    scale = model[1].weight
    rest = [p for p in model.parameters() if p is not scale or not proximal]
    sgd = torch.optim.SGD(rest, lr=FLAT.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    speed = torch.zeros_like(scale)
    for _ in range(epochs):
        for images, labels in DATA:
            model.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            scale.grad += penalty * scale.detach().sign()
            sgd.step()
            if proximal:
                with torch.no_grad():
                    z = scale - FLAT.lr * scale.grad
                    z = torch.where(
                        z.abs() > FLAT.lr * proximal, z - FLAT.lr * proximal * z.sign(), torch.zeros_like(z)
                    )
                    speed = z - scale + 0.9 * speed
                    scale.copy_(z + 0.9 * speed)
        if after_epoch is not None:
            after_epoch(model)
    return model


def assert_same(found: nn.Module, wanted: nn.Module) -> None:
    for (name, a), b in zip(found.state_dict().items(), wanted.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("penalty", [0.0, 0.05])
def test_l1_adds_the_subgradient_of_network_slimming(penalty: float) -> None:
    fitted = fit(network(), DATA, preset=FLAT, sparsity=penalty, channels_last=False)
    assert_same(fitted.model, loop(penalty=penalty))


def test_proximal_takes_the_steps_of_sparse_structure_selection() -> None:
    fitted = fit(network(), DATA, preset=FLAT, sparsity=0.05, sparsity_by="proximal", channels_last=False)
    assert_same(fitted.model, loop(proximal=0.05))


def test_what_cannot_be_penalised_is_refused() -> None:
    with pytest.raises(RunError, match="sparsity_by=proximal does nothing without sparsity: give sparsity as well"):
        fit(network(), DATA, preset=FLAT, sparsity_by="proximal")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(RunError, match="sparsity needs batch norms"):
        fit(model, DATA, preset=FLAT, sparsity=1e-4)


def test_soft_filter_pruning_zeroes_the_weakest_filters_and_lets_them_come_back() -> None:
    """SGD for an epoch, then half of the filters of the only private unit become 0: zeros still train."""
    zeroed: list[set[int]] = []

    @torch.no_grad()
    def zero(model: nn.Module) -> None:
        norms: Tensor = model[0].weight.flatten(1).norm(dim=1)  # type: ignore[index]
        assert not zeroed or (norms > 0).all()  # those that were zero have come back
        zeroed.append(set(norms.argsort()[:3].tolist()))
        model[0].weight[list(zeroed[-1])] = 0  # type: ignore[index]

    wanted = loop(after_epoch=zero)
    fitted = fit(network(), DATA, preset=FLAT, soft_prune=0.5, channels_last=False)
    assert_same(fitted.model, wanted)
    assert set(fitted.model[0].weight.flatten(1).norm(dim=1).eq(0).nonzero().flatten().tolist()) == zeroed[-1]
