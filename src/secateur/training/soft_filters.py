"""Soft filter pruning (SFP, He et al. 2018): weak filters are set to zero after each epoch and may come back."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secateur.channels.graph import trace
from secateur.channels.units import Unit
from secateur.deciding.widths import floor_of, weakest_first
from secateur.errors import RunError
from secateur.scoring.weights import filters


class SoftFilters:
    """Sets the weakest filters of a network to zero, by their L2 norm.

    Only filters that pruning can remove count: those that write private units. The publication counts all
    convolutions. Biases and batch norms are left as they are, as in the publication.
    """

    def __init__(self, model: nn.Module, example: Any, ratio: float) -> None:
        """ratio: fraction of the filters of every unit."""
        self._ratio, self._graph = ratio, trace(model, example)
        self._units = [unit for unit in self._graph.units.values() if unit.kind == "private"]
        if not self._units:
            raise RunError(f"soft_prune: no filter of {type(model).__name__} can be removed")

    @torch.no_grad()
    def zero(self) -> None:
        """Set the round(ratio x width) weakest filters of every unit to zero; a unit's floor stays."""
        for unit in self._units:
            norms = filters(self._graph, unit).norm(dim=1).numpy()
            count = min(unit.granule * round(self._ratio * unit.width / unit.granule), unit.width - floor_of(unit))
            gone = torch.from_numpy(weakest_first(unit, norms)[:count])
            self._zero(unit, gone)

    def _zero(self, unit: Unit, gone: torch.Tensor) -> None:
        for writer in unit.writers:
            layer: Any = self._graph.model.get_submodule(writer.module)
            mine = torch.isin(torch.from_numpy(writer.channels), gone)
            outputs = torch.from_numpy(writer.outputs)[mine].flatten().to(layer.weight.device)
            weight = layer.weight.transpose(0, 1) if isinstance(layer, _TRANSPOSED) else layer.weight
            weight[outputs] = 0


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
