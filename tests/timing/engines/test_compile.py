"""The compile engine: compiled once for each batch size, before timing, for any number of models of one class."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from prunus.timing.engines import ENGINES

MODELS = 12  # torch compiles one forward 8 times at most unless it is told otherwise


class Wide(nn.Module):
    """Sum over inputs and n outputs. As with pruned networks, the class is the same and the shapes differ."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, n))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).sum(1, keepdim=True)


def test_each_shape_is_compiled_once_for_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        """Building C++ would take a minute; counting is enough here."""
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    batches = torch.ones(1, 3), torch.ones(4, 3)
    with torch.no_grad():
        models = [ENGINES["compile"].prepare(Wide(n).eval(), batches[0], 1) for n in range(2, MODELS + 2)]
        assert not compiled  # only for the batch sizes that are asked for
        for model in models:
            for batch in batches:
                model.specialize(batch)
        assert len(compiled) == 2 * MODELS
        outputs = [model(batch) for model in models for batch in batches]
    assert len(compiled) == 2 * MODELS
    assert [(len(found), float(found[0, 0])) for found in outputs] == [
        (size, 3.0 * n) for n in range(2, MODELS + 2) for size in (1, 4)
    ]
