"""MACs of a model, its channel selections, and the kinds of layers that its time is spent in."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from secateur.base.batches import call, device_of
from secateur.base.preserve_state import evaluating
from secateur.channels.graph import trace
from secateur.channels.selection import selection_of
from secateur.errors import TraceError
from secateur.measuring.latency import placed, repeated
from secateur.measuring.onnx_file import OnnxFile

PROFILED = 5  # forward passes in which each layer is timed


@dataclass(frozen=True)
class ModelProfile:
    """What a model costs on paper, and where its time goes in eager mode."""

    macs: int | None  # for one image; None if the network cannot be traced
    selections: int  # number of layers that select their input channels
    shares: Mapping[str, float]  # kind of layer -> share of the time, largest first


def profile(model: nn.Module, example: Any, batch: int) -> ModelProfile:
    """The profile of a model; its layers are timed at batch size `batch`. Little is known about an ONNX file."""
    if isinstance(model, OnnxFile):
        return ModelProfile(None, 0, {})
    try:
        macs = trace(model, repeated(example, 1)).macs
    except TraceError:
        macs = None
    selections = sum(selection_of(module) is not None for module in model.modules())
    return ModelProfile(macs, selections, _shares(model, placed(repeated(example, batch), device_of(model))))


def _shares(model: nn.Module, images: Any) -> dict[str, float]:
    """Kind of layer -> share of the time of a forward pass. Time between layers is "functions"."""
    with evaluating(model), torch.no_grad():
        call(model, images)
        with _layers_timed(model) as spent:
            start = time.perf_counter()
            for _ in range(PROFILED):
                call(model, images)
            total = time.perf_counter() - start
    spent["functions"] = max(0.0, total - sum(spent.values()))
    return {kind: spent[kind] / total for kind in sorted(spent, key=spent.__getitem__, reverse=True)}


@contextmanager
def _layers_timed(model: nn.Module) -> Iterator[dict[str, float]]:
    """Kind -> seconds spent in the model's leaf modules of that kind, and in the channel selections before layers."""
    spent: dict[str, float] = {}
    clock: dict[nn.Module, float] = {}

    def lap(kind: str, module: nn.Module) -> None:
        now = time.perf_counter()
        spent[kind] = spent.get(kind, 0.0) + now - clock.get(module, now)
        clock[module] = now

    def before(module: nn.Module, _: Any) -> None:
        clock[module] = time.perf_counter()

    def after_selection(module: nn.Module, _: Any) -> None:
        lap("channel selection", module)

    def after(module: nn.Module, *_: Any) -> None:
        lap(type(module).__name__, module)

    handles = []
    try:
        for module in model.modules():
            if next(module.children(), None) is None:
                handles.append(module.register_forward_pre_hook(before, prepend=True))
                if selection_of(module) is not None:
                    handles.append(module.register_forward_pre_hook(after_selection))
                handles.append(module.register_forward_hook(after, prepend=True))
        yield spent
    finally:
        for handle in handles:
            handle.remove()
