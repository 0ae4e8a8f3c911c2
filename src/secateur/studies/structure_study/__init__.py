"""Weights and MACs of each layer or block before and after pruning (the supplement's tables)."""
