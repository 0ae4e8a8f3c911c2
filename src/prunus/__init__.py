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
    from prunus.run.compress import compress
    from prunus.run.curve import Curve, curve
    from prunus.run.result import Compressed
    from prunus.run.settings import Settings
    from prunus.scoring.citations import bibtex
    from prunus.scoring.collect import Statistics, collect
    from prunus.scoring.evidence import Channels
    from prunus.scoring.metrics import METRICS
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
    from prunus.tasks.one_stage import one_stage
    from prunus.timing.latency import Timing, latency
    from prunus.train.fit import Fitted, fit
    from prunus.train.mimic import Mimicked, mimic
    from prunus.train.settings import Preset
    from prunus.zoo.onnx.file import from_onnx

# Where the public names live. They are imported when first asked for: `prunus --help` need not wait for torch.
_HOMES = {
    "Evaluation": "prunus.tasks.evaluate",
    "Benched": "prunus.ship.bench",
    "COSTS": "prunus.deciding.costs",
    "ChannelGraph": "prunus.graph.channel_graph",
    "Channels": "prunus.scoring.evidence",
    "ClassMoments": "prunus.scoring.moments",
    "Comparison": "prunus.report.compare",
    "Compressed": "prunus.run.result",
    "Curve": "prunus.run.curve",
    "DataError": "prunus.errors",
    "DecideError": "prunus.errors",
    "Exported": "prunus.ship.export",
    "FileError": "prunus.errors",
    "Fitted": "prunus.train.fit",
    "Goal": "prunus.deciding.goal",
    "METRICS": "prunus.scoring.metrics",
    "Mimicked": "prunus.train.mimic",
    "ModelError": "prunus.errors",
    "Plan": "prunus.graph.plan",
    "PlanError": "prunus.errors",
    "Preset": "prunus.train.settings",
    "Quality": "prunus.tasks",
    "Reader": "prunus.graph.units",
    "RunError": "prunus.errors",
    "SPLITS": "prunus.deciding.settings",
    "ScoreError": "prunus.errors",
    "Scores": "prunus.scoring.scores",
    "PrunusError": "prunus.errors",
    "Sensitivity": "prunus.deciding.sensitivity",
    "Settings": "prunus.run.settings",
    "Statistics": "prunus.scoring.collect",
    "TASKS": "prunus.tasks",
    "Task": "prunus.tasks",
    "Timing": "prunus.timing.latency",
    "TraceError": "prunus.errors",
    "Unit": "prunus.graph.units",
    "Writer": "prunus.graph.units",
    "agreement": "prunus.tasks.agreement",
    "bench": "prunus.ship.bench",
    "bibtex": "prunus.scoring.citations",
    "collect": "prunus.scoring.collect",
    "compare": "prunus.report.compare",
    "compress": "prunus.run.compress",
    "curve": "prunus.run.curve",
    "decide": "prunus.deciding.splits",
    "detection": "prunus.tasks.detection",
    "evaluate": "prunus.tasks.evaluate",
    "export": "prunus.ship.export",
    "fit": "prunus.train.fit",
    "fold_batch_norm": "prunus.ship.fold",
    "from_onnx": "prunus.zoo.onnx.file",
    "keep_classes": "prunus.graph.outputs",
    "latency": "prunus.timing.latency",
    "load": "prunus.graph.files",
    "mimic": "prunus.train.mimic",
    "one_stage": "prunus.tasks.one_stage",
    "prune": "prunus.graph.channel_graph",
    "register_rule": "prunus.graph.rules.rulebook",
    "regression": "prunus.tasks.builtin",
    "repair": "prunus.repairing.repair",
    "repair_each": "prunus.repairing.unit_repair",
    "rules": "prunus.graph.rules",
    "save": "prunus.graph.files",
    "score": "prunus.scoring.score",
    "segmentation": "prunus.tasks.builtin",
    "sensitivity": "prunus.deciding.sensitivity",
    "studies": "prunus.studies",
    "trace": "prunus.graph.channel_graph",
    "ultralytics": "prunus.ship.ultralytics",
    "uniform": "prunus.deciding.splits",
    "zeroed": "prunus.graph.surgery",
}

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
    home = import_module(_HOMES[name])
    return home if name in ("rules", "studies", "ultralytics") else getattr(home, name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
