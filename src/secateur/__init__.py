"""Secateur: channel pruning for CNN classifiers. A trained network and labelled images in, a smaller network out.

import secateur as sc

graph  = sc.trace(model, example)                        # who reads and writes every channel
scores = sc.score(graph, loader, metric="gsd")           # what every channel is worth
plan   = sc.uniform(graph, scores, ratio=0.3)            # the same share everywhere, or
sens   = sc.sensitivity(graph, scores, holdout)          # Algorithm 1 of the paper
plan   = sc.decide(graph, scores, sens, target=0.5)
small  = sc.prune(graph, plan)                           # a new model of the same class
sc.save(small, plan, "small/"); small = sc.load("small/", fresh_model).eval()
result = sc.compress(model, train, holdout, target=0.5)  # all of the above; epochs=3 retrains as well
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secateur import studies
    from secateur.channels import rules
    from secateur.channels.files import load, save
    from secateur.channels.graph import ChannelGraph, trace
    from secateur.channels.plan import Plan
    from secateur.channels.rules.rulebook import register_rule
    from secateur.channels.surgery import prune
    from secateur.channels.units import Reader, Unit, Writer
    from secateur.channels.zeroing import zeroed
    from secateur.deciding.costs import COSTS
    from secateur.deciding.goal import Goal
    from secateur.deciding.ranked_plan import decide
    from secateur.deciding.sensitivity import Sensitivity, sensitivity
    from secateur.deciding.splits import SPLITS
    from secateur.deciding.splits.uniform import uniform
    from secateur.errors import (
        DataError,
        DecideError,
        FileError,
        ModelError,
        PlanError,
        RunError,
        ScoreError,
        SecateurError,
        TraceError,
    )
    from secateur.measuring.accuracy import Accuracy, evaluate
    from secateur.measuring.latency import Timing, latency
    from secateur.measuring.tasks import TASKS, Quality, Task
    from secateur.measuring.tasks.regression import regression
    from secateur.measuring.tasks.segmentation import segmentation
    from secateur.repairing.repair import repair
    from secateur.repairing.unit_repair import repair_each
    from secateur.report.comparing.comparison import Comparison, compare
    from secateur.running.compress import Compressed, compress
    from secateur.running.settings import Settings
    from secateur.scoring.collect import collect
    from secateur.scoring.evidence import Channels
    from secateur.scoring.metrics import METRICS
    from secateur.scoring.moments import ClassMoments
    from secateur.scoring.score import score
    from secateur.scoring.scores import Scores
    from secateur.scoring.statistics import Statistics
    from secateur.shipping.bench import Benched, bench
    from secateur.shipping.export import Exported, export
    from secateur.shipping.fold import fold_batch_norm
    from secateur.training.fit import Fitted, fit
    from secateur.training.presets import Preset

# Where the public names live. They are imported when first asked for: `secateur --help` need not wait for torch.
_HOMES = {
    "Accuracy": "secateur.measuring.accuracy",
    "Benched": "secateur.shipping.bench",
    "COSTS": "secateur.deciding.costs",
    "ChannelGraph": "secateur.channels.graph",
    "Channels": "secateur.scoring.evidence",
    "ClassMoments": "secateur.scoring.moments",
    "Comparison": "secateur.report.comparing.comparison",
    "Compressed": "secateur.running.compress",
    "DataError": "secateur.errors",
    "DecideError": "secateur.errors",
    "Exported": "secateur.shipping.export",
    "FileError": "secateur.errors",
    "Fitted": "secateur.training.fit",
    "Goal": "secateur.deciding.goal",
    "METRICS": "secateur.scoring.metrics",
    "ModelError": "secateur.errors",
    "Plan": "secateur.channels.plan",
    "PlanError": "secateur.errors",
    "Preset": "secateur.training.presets",
    "Quality": "secateur.measuring.tasks",
    "Reader": "secateur.channels.units",
    "RunError": "secateur.errors",
    "SPLITS": "secateur.deciding.splits",
    "ScoreError": "secateur.errors",
    "Scores": "secateur.scoring.scores",
    "SecateurError": "secateur.errors",
    "Sensitivity": "secateur.deciding.sensitivity",
    "Settings": "secateur.running.settings",
    "Statistics": "secateur.scoring.statistics",
    "TASKS": "secateur.measuring.tasks",
    "Task": "secateur.measuring.tasks",
    "Timing": "secateur.measuring.latency",
    "TraceError": "secateur.errors",
    "Unit": "secateur.channels.units",
    "Writer": "secateur.channels.units",
    "bench": "secateur.shipping.bench",
    "collect": "secateur.scoring.collect",
    "compare": "secateur.report.comparing.comparison",
    "compress": "secateur.running.compress",
    "decide": "secateur.deciding.ranked_plan",
    "evaluate": "secateur.measuring.accuracy",
    "export": "secateur.shipping.export",
    "fit": "secateur.training.fit",
    "fold_batch_norm": "secateur.shipping.fold",
    "latency": "secateur.measuring.latency",
    "load": "secateur.channels.files",
    "prune": "secateur.channels.surgery",
    "register_rule": "secateur.channels.rules.rulebook",
    "regression": "secateur.measuring.tasks.regression",
    "repair": "secateur.repairing.repair",
    "repair_each": "secateur.repairing.unit_repair",
    "rules": "secateur.channels.rules",
    "save": "secateur.channels.files",
    "score": "secateur.scoring.score",
    "segmentation": "secateur.measuring.tasks.segmentation",
    "sensitivity": "secateur.deciding.sensitivity",
    "studies": "secateur.studies",
    "trace": "secateur.channels.graph",
    "uniform": "secateur.deciding.splits.uniform",
    "zeroed": "secateur.channels.zeroing",
}

__all__ = [
    "COSTS",
    "METRICS",
    "SPLITS",
    "TASKS",
    "Accuracy",
    "Benched",
    "ChannelGraph",
    "Channels",
    "ClassMoments",
    "Comparison",
    "Compressed",
    "DataError",
    "DecideError",
    "Exported",
    "FileError",
    "Fitted",
    "Goal",
    "ModelError",
    "Plan",
    "PlanError",
    "Preset",
    "Quality",
    "Reader",
    "RunError",
    "ScoreError",
    "Scores",
    "SecateurError",
    "Sensitivity",
    "Settings",
    "Statistics",
    "Task",
    "Timing",
    "TraceError",
    "Unit",
    "Writer",
    "bench",
    "collect",
    "compare",
    "compress",
    "decide",
    "evaluate",
    "export",
    "fit",
    "fold_batch_norm",
    "latency",
    "load",
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
    "uniform",
    "zeroed",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module it lives in; or the version that is installed."""
    if name == "__version__":
        return import_module("importlib.metadata").version("secateur")
    if name not in _HOMES:
        raise AttributeError(f"module 'secateur' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    home = import_module(_HOMES[name])
    return home if name in ("rules", "studies") else getattr(home, name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
