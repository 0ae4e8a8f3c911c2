"""Names of metrics in pictures, as in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "gsd": "G-SD",
        "fdr": "G-FDR",
        "abs_snr": "G-AbsSNR",
        "ttest": "G-T-test",
        "di": "DI",
        "mmd": "MMD",
        "l1": "L1 norm",
        "l2": "L2 norm",
        "bn_scale": "BN scale",
        "fpgm": "FPGM",
        "thinet": "ThiNet",
        "cp": "CP",
        "nisp": "NISP",
        "dcp": "DCP",
        "hrank": "HRank",
        "chip": "CHIP",
    }
)


def metric_name(metric: str) -> str:
    """The name of a metric in pictures, and its options, if there are any."""
    name, _, options = metric.partition(":")
    shown = NAMES.get(name, name.replace("_", " "))
    return f"{shown}, {options.replace(':', ', ')}" if options else shown
