"""Measurements of a network: accuracy, latency, and the engines that run it.

Import from the modules: this package imports none of them, so that the names of the engines are known without torch.
"""
