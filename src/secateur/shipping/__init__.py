"""Shipping: models as files that run elsewhere, and how fast they run."""

from secateur.shipping.bench import Benched, bench
from secateur.shipping.export import Exported, export
from secateur.shipping.fold import fold_batch_norm

__all__ = ["Benched", "Exported", "bench", "export", "fold_batch_norm"]
