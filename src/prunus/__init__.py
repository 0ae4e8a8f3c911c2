"""Prunus makes trained vision networks smaller and faster: a network and images in, a smaller network of its class out.

Any task, images with or without labels. The pruned network computes exactly what the original computes when the removed
channels are zero, and its layers are re-solved so that it needs no training.

    import prunus

    result = prunus.compress(model, train, holdout, target=0.5)  # everything below; epochs=3 retrains as well

    graph = prunus.trace(model, example)                         # who reads and writes every channel
    scores = prunus.score(graph, loader, metric="gsd")           # what every channel is worth
    plan = prunus.uniform(graph, scores, ratio=0.3)              # the same share everywhere, or
    ranking = prunus.sensitivity(graph, scores, holdout)         # Algorithm 1 of the paper
    plan = prunus.decide(graph, scores, ranking, target=0.5)
    small = prunus.prune(graph, plan)                            # a new model of the same class
    prunus.save(small, plan, "small/")
    small = prunus.load("small/", fresh_model).eval()
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from prunus.util.registry import import_homes

if TYPE_CHECKING:
    from prunus import studies
    from prunus.deciding.costs import COSTS
    from prunus.deciding.goal import Goal
    from prunus.deciding.sensitivity import Sensitivity, sensitivity
    from prunus.deciding.settings import SPLITS
    from prunus.deciding.splits import decide, uniform
    from prunus.errors import (
        DataError,
        DecideError,
        FileError,
        ModelError,
        PlanError,
        PrunusError,
        RunError,
        ScoreError,
        TraceError,
    )
    from prunus.graph import rules
    from prunus.graph.channel_graph import ChannelGraph, prune, trace
    from prunus.graph.files import load, save
    from prunus.graph.outputs import keep_classes
    from prunus.graph.plan import Plan
    from prunus.graph.rules.rulebook import register_rule
    from prunus.graph.surgery import zeroed
    from prunus.graph.units import Reader, Unit, Writer
    from prunus.repairing.repair import repair
    from prunus.repairing.unit_repair import repair_each
    from prunus.report.compare import Comparison, compare
    from prunus.run.compress import Compressed, compress
    from prunus.run.curve import Curve, curve
    from prunus.run.settings import Settings
    from prunus.scoring.collect import Statistics, collect
    from prunus.scoring.evidence import Channels
    from prunus.scoring.metrics import METRICS, bibtex
    from prunus.scoring.moments import ClassMoments
    from prunus.scoring.score import score
    from prunus.scoring.scores import Scores
    from prunus.ship import ultralytics
    from prunus.ship.bench import Benched, bench
    from prunus.ship.export import Exported, export
    from prunus.ship.fold import fold_batch_norm
    from prunus.tasks import TASKS, Quality, Task
    from prunus.tasks.agreement import agreement
    from prunus.tasks.builtin import regression, segmentation
    from prunus.tasks.detection import detection
    from prunus.tasks.evaluate import Evaluation, evaluate
    from prunus.tasks.one_stage import one_stage, two_stage
    from prunus.timing.latency import Timing, latency
    from prunus.train.fit import Fitted, fit
    from prunus.train.mimic import Mimicked, mimic
    from prunus.train.settings import Preset
    from prunus.zoo.onnx.file import from_onnx

# They are imported when first asked for: `prunus --help` need not wait for torch.
_HOMES = import_homes(__file__)

__all__ = [
    "COSTS",
    "METRICS",
    "SPLITS",
    "TASKS",
    "Benched",
    "ChannelGraph",
    "Channels",
    "ClassMoments",
    "Comparison",
    "Compressed",
    "Curve",
    "DataError",
    "DecideError",
    "Evaluation",
    "Exported",
    "FileError",
    "Fitted",
    "Goal",
    "Mimicked",
    "ModelError",
    "Plan",
    "PlanError",
    "Preset",
    "PrunusError",
    "Quality",
    "Reader",
    "RunError",
    "ScoreError",
    "Scores",
    "Sensitivity",
    "Settings",
    "Statistics",
    "Task",
    "Timing",
    "TraceError",
    "Unit",
    "Writer",
    "agreement",
    "bench",
    "bibtex",
    "collect",
    "compare",
    "compress",
    "curve",
    "decide",
    "detection",
    "evaluate",
    "export",
    "fit",
    "fold_batch_norm",
    "from_onnx",
    "keep_classes",
    "latency",
    "load",
    "mimic",
    "one_stage",
    "prune",
    "register_rule",
    "regression",
    "repair",
    "repair_each",
    "rules",
    "save",
    "score",
    "segmentation",
    "sensitivity",
    "studies",
    "trace",
    "two_stage",
    "ultralytics",
    "uniform",
    "zeroed",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in; or the version that is installed."""
    if name == "__version__":
        return import_module("importlib.metadata").version("prunus")
    if name not in _HOMES:
        raise AttributeError(f"module 'prunus' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    if name in ("rules", "studies", "ultralytics"):  # modules
        return import_module(f"{_HOMES[name]}.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
