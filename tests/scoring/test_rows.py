"""Inputs and weights of layers as rows, beside the layers themselves."""

from __future__ import annotations

import torch
from torch import nn

from prunus.scoring.rows import grid_of, inputs_at, outputs_at, rows_of_weight, spots_of


def test_rows_times_weights_are_the_layer() -> None:
    x = torch.randn(3, 3, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3),
        nn.Conv2d(3, 4, (3, 2), padding=(2, 0), dilation=(2, 1), padding_mode="circular"),
        nn.Linear(7, 4),
    ]
    for layer in layers:
        layer = layer.double()
        y = layer(x).detach()
        where = spots_of(range(3), grid_of(layer, y), 5, (0,))
        assert all(len(set(row)) == 5 for row in where.tolist())
        rows = inputs_at(layer, x, where)
        mine = torch.einsum("ipgn,gon->ipgo", rows.flatten(3), rows_of_weight(layer)).flatten(2) + layer.bias.detach()
        assert torch.allclose(mine, outputs_at(layer, y, where), atol=1e-12)
    line = nn.Conv1d(3, 4, 3, padding=1).double()
    y = line(x[:, :, 0]).detach()
    where = spots_of(range(3), 7, 100, (0,))
    assert where.tolist() == [list(range(7))] * 3
    mine = torch.einsum("ipgn,gon->ipgo", inputs_at(line, x[:, :, 0], where).flatten(3), rows_of_weight(line)).flatten(
        2
    )
    assert torch.allclose((mine + line.bias.detach()).mT, y, atol=1e-12)
