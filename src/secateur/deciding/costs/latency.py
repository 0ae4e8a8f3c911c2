"""Seconds per batch, from a table of layer timings measured on this machine."""

from secateur.deciding.costs import CostEntry
from secateur.deciding.latency_table import measured_cost

ENTRY = CostEntry(of=measured_cost, measured=True)
