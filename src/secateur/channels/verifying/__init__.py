"""Proof by running: a pruned network must compute what the zeroed network computes."""
