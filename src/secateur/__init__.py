"""Secateur: channel pruning for CNN classifiers."""

from secateur.channels import rules
from secateur.channels.files import load, save
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.channels.rulebook import register_rule
from secateur.channels.surgery import prune
from secateur.channels.units import Reader, Unit, Writer
from secateur.channels.zero import zeroed
from secateur.measuring.accuracy import Accuracy, evaluate
from secateur.training.distillation import Distillation
from secateur.training.fit import Fitted, fit
from secateur.training.presets import Preset
from secateur.training.repair import repair

__all__ = [
    "Accuracy",
    "ChannelGraph",
    "Distillation",
    "Fitted",
    "Plan",
    "Preset",
    "Reader",
    "Unit",
    "Writer",
    "evaluate",
    "fit",
    "load",
    "prune",
    "register_rule",
    "repair",
    "rules",
    "save",
    "trace",
    "zeroed",
]
