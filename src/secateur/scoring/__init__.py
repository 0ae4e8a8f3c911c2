"""What a channel is worth: statistics in one pass over the data, and metrics that turn them into scores."""
