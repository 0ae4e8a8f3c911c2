"""What a network does and how fast: accuracy and latency."""

from secateur.measuring.accuracy import Accuracy, evaluate, too_good
from secateur.measuring.latency import Timing, latency

__all__ = ["Accuracy", "Timing", "evaluate", "latency", "too_good"]
