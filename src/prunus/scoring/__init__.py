"""Scores of channels: statistics from one pass over the data, and metrics that turn them into scores."""
