"""Secateur: channel pruning for CNN classifiers. A trained network and labelled images in, a smaller network out.

import secateur as sc

graph  = sc.trace(model, example)                        # who reads and writes every channel
scores = sc.score(graph, loader, metric="gsd")           # what every channel is worth
plan   = sc.uniform(graph, scores, ratio=0.3)            # the same share everywhere, or
sens   = sc.sensitivity(graph, scores, holdout)          # Algorithm 1 of the paper
plan   = sc.decide(graph, scores, sens, target=0.5)
small  = sc.prune(graph, plan)                           # a new model of the same class
sc.save(small, plan, "small/"); small = sc.load("small/", fresh_model)
result = sc.compress(model, train, holdout, target=0.5)  # rounds of the above, with retraining
"""

from secateur.channels import rules
from secateur.channels.files import load, save
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.channels.rulebook import register_rule
from secateur.channels.surgery import prune
from secateur.channels.units import Reader, Unit, Writer
from secateur.channels.zero import zeroed
from secateur.deciding.budget import uniform
from secateur.deciding.decide import decide
from secateur.deciding.sensitivity import Sensitivity, sensitivity
from secateur.measuring.accuracy import Accuracy, evaluate
from secateur.running.compress import Compressed, compress
from secateur.running.settings import Settings
from secateur.scoring.collect import collect
from secateur.scoring.moments import ClassMoments
from secateur.scoring.score import score
from secateur.scoring.scores import Scores
from secateur.training.distillation import Distillation
from secateur.training.fit import Fitted, fit
from secateur.training.presets import Preset
from secateur.training.repair import repair

__all__ = [
    "Accuracy",
    "ChannelGraph",
    "ClassMoments",
    "Compressed",
    "Distillation",
    "Fitted",
    "Plan",
    "Preset",
    "Reader",
    "Scores",
    "Sensitivity",
    "Settings",
    "Unit",
    "Writer",
    "collect",
    "compress",
    "decide",
    "evaluate",
    "fit",
    "load",
    "prune",
    "register_rule",
    "repair",
    "rules",
    "save",
    "score",
    "sensitivity",
    "trace",
    "uniform",
    "zeroed",
]
