"""Measuring time: of a piece of work, and of the forward passes that compute feature maps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from secateur.base.batches import Batches, device_of, move, unpack
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.runner import GraphRunner, last_uses

CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
REPEATS, ENOUGH_SECONDS = 5, 1.0  # a measurement is the median of 5 runs, or of those that fit in one second


def map_seconds(graph: ChannelGraph, batches: Batches, clock: str = "wall") -> dict[str, float]:
    """unit -> seconds from the start of a forward pass until its last reader is reached, over all batches."""
    seconds = dict.fromkeys(graph.units, 0.0)
    home = device_of(graph.model)
    with evaluating(graph.model), generators_kept(), torch.inference_mode(False), torch.no_grad():
        for index, batch in enumerate(batches):
            images, labels = unpack(batch, index)
            if len(labels):
                for unit, spent in _until_readers(graph, move(images, home), clock).items():
                    seconds[unit] += spent
    return seconds


def _until_readers(graph: ChannelGraph, images: Any, clock: str) -> dict[str, float]:
    """unit -> seconds of one forward pass until its last reader is reached."""
    runner = GraphRunner(graph.traced_for(images))
    free = last_uses(runner.nodes)
    calls = {unit.name: runner.calls_of({reader.module for reader in unit.readers}) for unit in graph.units.values()}
    readers = {node for nodes in calls.values() for node in nodes}
    reached: dict[fx.Node, float] = {}
    values = runner.bind(images, copy=True)
    start = _now(graph, clock)
    for node in runner.steps(values, free=free):
        if node in readers:
            reached[node] = _now(graph, clock) - start
    return {unit: max(reached[node] for node in nodes) for unit, nodes in calls.items()}


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
