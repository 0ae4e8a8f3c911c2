"""Measuring time: of a piece of work, and of the forward passes that compute feature maps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.scoring.data_pass import walk
from secateur.scoring.tap_location import find_places, watched

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
REPEATS, ENOUGH_SECONDS = 5, 1.0  # a measurement is the median of 5 runs, or of those that fit in one second


def map_seconds(graph: ChannelGraph, batches: Batches, clock: str = "wall") -> dict[str, float]:
    """unit -> seconds from the start of a forward pass until its last reader is reached, over all batches."""
    places = find_places(graph, "reader")
    spent: dict[str, float] = dict.fromkeys(places.taps, 0.0)
    started = 0.0

    def start(*_: Any) -> None:
        nonlocal started
        started = _now(graph, clock)

    def see(name: str, _: Tensor) -> None:
        spent[name] += _now(graph, clock) - started

    handle = graph.model.register_forward_pre_hook(start)
    try:
        with watched(graph, places, see) as sharing:
            walk(graph, batches, lambda *_: None)
    finally:
        handle.remove()
    seconds = dict.fromkeys(graph.units, 0.0)
    for name, tap in sharing.merged(places.taps).items():
        for slot in tap.slots:
            seconds[slot.unit] = max(seconds[slot.unit], spent[name])
    return seconds


def median_seconds(work: Callable[[], Any], clock: str) -> float:
    """Median time of a few runs. Work that takes long runs once."""
    times: list[float] = []
    while not times or (len(times) < REPEATS and sum(times) < ENOUGH_SECONDS):
        start = CLOCKS[clock]()
        work()
        times.append(CLOCKS[clock]() - start)
    return statistics.median(times)


def _now(graph: ChannelGraph, clock: str) -> float:
    device = next(graph.model.parameters()).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return CLOCKS[clock]()
