"""The metrics by name. A new one is a file in this folder and a line in the table below."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from secateur.scoring.metrics.abs_snr import abs_snr
from secateur.scoring.metrics.act_variance import act_variance
from secateur.scoring.metrics.bn_scale import bn_scale
from secateur.scoring.metrics.di import di
from secateur.scoring.metrics.evidence import Bare, Channels, Filters, Gradients, Maps, Metric
from secateur.scoring.metrics.fdr import fdr
from secateur.scoring.metrics.fisher import fisher
from secateur.scoring.metrics.fpgm import fpgm
from secateur.scoring.metrics.gsd import gsd
from secateur.scoring.metrics.gsd_reader import gsd_reader
from secateur.scoring.metrics.l1 import l1
from secateur.scoring.metrics.l2 import l2
from secateur.scoring.metrics.mmd import mmd
from secateur.scoring.metrics.random import random
from secateur.scoring.metrics.reader_energy import reader_energy
from secateur.scoring.metrics.taylor import taylor
from secateur.scoring.metrics.ttest import ttest

__all__ = ["METRICS", "Bare", "Channels", "Filters", "Gradients", "Maps", "Metric"]

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric("gsd", "moments", gsd, "generalised symmetric divergence, the paper's choice"),
            Metric("fdr", "moments", fdr, "generalised Fisher discriminant ratio"),
            Metric("abs_snr", "moments", abs_snr, "generalised absolute signal-to-noise ratio"),
            Metric("ttest", "moments", ttest, "generalised Student's t-test"),
            Metric("di", "maps", di, "discriminant information"),
            Metric("mmd", "maps", mmd, "maximum mean discrepancy"),
            Metric("act_variance", "moments", act_variance, "variance of the activations, no labels"),
            Metric("reader_energy", "moments", reader_energy, "mean square x squared norm of the readers, no labels"),
            Metric("gsd_reader", "moments", gsd_reader, "(G-SD + 1) x norm of the readers"),
            Metric("l1", "filters", l1, "L1 norm of the filters"),
            Metric("l2", "filters", l2, "L2 norm of the filters"),
            Metric("bn_scale", "filters", bn_scale, "batch-norm scale, network slimming"),
            Metric("fpgm", "filters", fpgm, "distance from the geometric median"),
            Metric("taylor", "gradients", taylor, "first-order Taylor expansion on weights"),
            Metric("fisher", "gradients", fisher, "squared activation x gradient"),
            Metric("random", "nothing", random, "chance"),
        )
    }
)
