"""Secateur: channel pruning for CNN classifiers."""

from secateur.channels import rules
from secateur.channels.files import load, save
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.channels.rulebook import register_rule
from secateur.channels.surgery import prune
from secateur.channels.units import Reader, Unit, Writer
from secateur.channels.zero import zeroed

__all__ = [
    "ChannelGraph",
    "Plan",
    "Reader",
    "Unit",
    "Writer",
    "load",
    "prune",
    "register_rule",
    "rules",
    "save",
    "trace",
    "zeroed",
]
