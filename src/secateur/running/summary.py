"""A finished run in numbers: before and after, layer by layer, and where the time went."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from secateur.base.batches import Batches
from secateur.channels.plan import Plan
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.latency import latency
from secateur.running.rounds import Outcome
from secateur.running.run_context import Job, Tools

BATCHES = (1, 64)


def summarise(
    job: Job,
    plan: Plan,
    pruned: nn.Module,
    before: Accuracy,
    rounds: Sequence[Outcome],
    test: Batches | None,
    example: Any,
) -> dict[str, Any]:
    """Everything a report needs. The test images are read here, once for each network, and nowhere else."""
    graph, original, tools = job.graph, job.original, job.tools
    cost = graph.cost(plan)
    tests = {"before": None, "after": None}
    if test is not None:
        tools.say("test", 0, 2)
        tests["before"] = tools.evaluate(original, test).__dict__  # type: ignore[assignment]
        tools.say("test", 1, 2)
        tests["after"] = tools.evaluate(pruned, test).__dict__  # type: ignore[assignment]
        tools.say("test", 2, 2)
    times = _times(original, pruned, example, tools)
    after = rounds[-1].after if rounds else before
    return {
        "format": "secateur-summary",
        "version": 1,
        "model": type(original).__name__,
        "settings": job.settings.to_dict(),
        "before": {
            "holdout": before.__dict__,
            "test": tests["before"],
            "macs": graph.macs,
            "params": graph.params,
            "bytes": _bytes(original),
            "latency": times.get("before"),
        },
        "after": {
            "holdout": after.__dict__,
            "test": tests["after"],
            "macs": cost.macs,
            "params": cost.params,
            "bytes": _bytes(pruned),
            "latency": times.get("after"),
        },
        "removed": {"macs": 1 - cost.macs / graph.macs, "params": 1 - cost.params / graph.params},
        "rounds": [outcome.to_dict() for outcome in rounds],
        "units": {
            name: {"kind": unit.kind, "width": unit.width, "kept": len(plan.keep[name])}
            for name, unit in graph.units.items()
        },
        "layers": {
            name: {
                "inputs": [layer.inputs, cost.layers[name].inputs],
                "outputs": [layer.outputs, cost.layers[name].outputs],
                "macs": [layer.macs, cost.layers[name].macs],
                "params": [layer.params, cost.layers[name].params],
            }
            for name, layer in graph.layers.items()
        },
        "seconds": _seconds(rounds),
        "versions": {"secateur": version("secateur"), "python": platform.python_version(), "torch": torch.__version__},
    }


def _times(original: nn.Module, pruned: nn.Module, example: Any, tools: Tools) -> dict[str, dict[str, float]]:
    """Median seconds of a forward pass at each batch size, both networks in turns."""
    if not isinstance(example, Tensor):
        return {}
    timings = latency(
        {"before": original, "after": pruned},
        example,
        batch_sizes=BATCHES,
        rounds=10,
        progress=lambda done, _: tools.say("latency", done, len(BATCHES)),
    )
    found: dict[str, dict[str, float]] = {"before": {}, "after": {}}
    for timing in timings:
        found[timing.name][str(timing.batch_size)] = timing.median
    return found


def _bytes(model: nn.Module) -> int:
    """Bytes of the tensors that go into a file."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def _seconds(rounds: Sequence[Outcome]) -> dict[str, float]:
    total: dict[str, float] = {}
    for outcome in rounds:
        phases: Mapping[str, float] = outcome.seconds
        for phase, seconds in phases.items():
            total[phase] = round(total.get(phase, 0.0) + seconds, 3)
    return total
