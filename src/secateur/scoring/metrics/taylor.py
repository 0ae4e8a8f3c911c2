"""First-order Taylor expansion on weights (Molchanov et al. 2019)."""

from torch import Tensor

from secateur.scoring.evidence import Gradients
from secateur.scoring.metrics import Metric


def taylor(gradients: Gradients) -> Tensor:
    """Sum over a channel's filter (the readers' slices for a stream) of |weight x gradient of the mean loss|.

    This is the first-order change of the loss if each weight alone is set to zero. Absolute values are taken before the
    sum: near a minimum the signed terms of a whole filter cancel, and their squared sum ranks filters far worse
    (docs/metrics.md).
    """
    return (gradients.weights * gradients.weight_gradients).abs().sum(1)


ENTRY = Metric(needs="gradients", score=taylor)
