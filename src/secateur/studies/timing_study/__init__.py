"""Seconds to score each layer by each metric (the paper's Fig. 6)."""
