"""MACs, selections and shares of the time of one model."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from prunus.ship.bench import profile
from tests.ship.nets import network, pictures, pruned


def test_macs_and_selections_by_hand() -> None:
    original, small = profile(network(), pictures(1), 2), profile(pruned()[0], pictures(1), 2)
    # 64 positions: 6x3x9 + 8x6x9 + 6x8x9 and 4x6; pruned: 6x3x9 + 4x4x9 + 6x4x9 and 4x6
    assert (original.macs, original.selections) == (64 * (162 + 432 + 432) + 24, 0)
    assert (small.macs, small.selections) == (64 * (162 + 144 + 216) + 24, 1)
    assert "channel selection" in small.shares and "channel selection" not in original.shares
    assert sum(small.shares.values()) == pytest.approx(1.0)
    assert list(small.shares.values()) == sorted(small.shares.values(), reverse=True)


def test_hooks_are_removed_and_modes_restored_after_an_error() -> None:
    class Failing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Flatten(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 2:
                raise ValueError("enough")
            return self.layer(x)

    model = Failing().train()
    with pytest.raises(ValueError, match="enough"):
        profile(model, pictures(1), 1)
    assert model.training and model.layer.training
    assert not model.layer._forward_hooks and not model.layer._forward_pre_hooks
