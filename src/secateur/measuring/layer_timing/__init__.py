"""Timings of single layers at many widths, which a latency table is made of."""
