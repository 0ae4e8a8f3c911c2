"""Accumulate feature maps batch by batch: whole, or as sums of products whose size stays the same."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from secateur.errors import ScoreError
from secateur.scoring.evidence import Maps, Scatter
from secateur.scoring.tap_hooks import Slot, gather


class MapAccumulator(ABC):
    """The maps of one slot. A tap shows a batch's maps to `see`; `add` keeps them when the batch is done."""

    def __init__(self, tap: str, slot: Slot) -> None:
        self.tap, self.slot = tap, slot
        self._pending: list[Tensor] = []  # [N, n, d] of each call of the layer
        self._sides: list[tuple[int, int]] = []  # height and width of each

    def see(self, x: Tensor) -> None:
        """The tensor that enters the layer in one of its calls."""
        self._sides = [*self._sides[: len(self._pending)], _sides(x, self.slot)]
        self._pending.append(gather(x, self.slot))

    def add(self, batch: int, mine: Tensor, labels: Tensor, classes: int) -> None:
        """Keep the images `mine` (a mask) of the batch, which have these labels."""
        calls, self._pending = self._pending, []
        if not calls:
            raise ScoreError(f"batch {batch} does not run through {self.tap}, unlike the example")
        maps = torch.cat(calls, 2)
        maps = maps[mine.to(maps.device)].cpu()
        if not bool(torch.isfinite(maps).all()):
            raise ScoreError(
                f"batch {batch}: activations of unit {self.slot.unit} that enter {self.tap} are NaN or infinite; "
                "check the images and the weights"
            )
        self._take(maps, labels, classes)

    def _height(self) -> int:
        """Rows of a map; the maps of several calls of a layer are stacked if they are equally wide."""
        same = len({width for _, width in self._sides}) == 1
        return sum(height for height, _ in self._sides) if same else 1

    @abstractmethod
    def _take(self, maps: Tensor, labels: Tensor, classes: int) -> None:
        """Keep maps [N, n, d] of images with these labels; `classes` is the number of classes."""

    @abstractmethod
    def maps(self, labels: Tensor, memory: int) -> Maps:
        """All maps that were kept; `labels` are those of all batches, concatenated."""


class WholeMapAccumulator(MapAccumulator):
    """Keeps the maps themselves."""

    def __init__(self, tap: str, slot: Slot) -> None:
        super().__init__(tap, slot)
        self._parts: list[Tensor] = []

    def _take(self, maps: Tensor, labels: Tensor, classes: int) -> None:
        self._parts.append(maps)  # a copy already: a mask was applied to it

    def maps(self, labels: Tensor, memory: int) -> Maps:
        whole = torch.cat(self._parts)
        self._parts.clear()
        return Maps(self.slot.unit, labels, whole, None, memory, self._height())


class ScatterAccumulator(MapAccumulator):
    """Keeps sums and products in float64. The first batch's mean map is subtracted first, so that little cancels."""

    def __init__(self, tap: str, slot: Slot) -> None:
        super().__init__(tap, slot)
        self._scatter: Scatter | None = None
        self._shift = torch.zeros(())

    def _take(self, maps: Tensor, labels: Tensor, classes: int) -> None:
        x = maps.double().transpose(0, 1)  # [n, N, d]
        if self._scatter is None:
            n, _, d = x.shape
            self._shift = x.mean(1, keepdim=True)  # [n, 1, d]
            zeros = [torch.zeros(*shape, dtype=torch.float64) for shape in ((classes,), (classes, n, d), (n, d, d))]
            self._scatter = Scatter(*zeros)
        x = x - self._shift
        self._scatter.counts.add_(torch.bincount(labels, minlength=classes))
        self._scatter.sums.index_add_(0, labels, x.transpose(0, 1))
        self._scatter.products.baddbmm_(x.transpose(1, 2), x)

    def maps(self, labels: Tensor, memory: int) -> Maps:
        return Maps(self.slot.unit, labels, None, self._scatter, memory, self._height())


def _sides(x: Tensor, slot: Slot) -> tuple[int, int]:
    """Height and width of a map. A flattened map is taken to be square if its number of pixels is a square."""
    if x.ndim == 4 and slot.inputs.shape[1] == 1:
        return int(x.shape[2]), int(x.shape[3])
    pixels = slot.inputs.shape[1] * x.shape[2:].numel()
    side = math.isqrt(pixels)
    return (side, side) if side * side == pixels else (1, pixels)
