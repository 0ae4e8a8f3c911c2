"""Shipping: networks as files that run without secateur, and how fast they run."""
