"""Shipping: networks as files that run without prunus, and how fast they run."""
