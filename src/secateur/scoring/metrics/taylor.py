"""First-order Taylor expansion on weights (Molchanov et al. 2019)."""

from torch import Tensor

from secateur.scoring.evidence import Gradients
from secateur.scoring.metrics import Metric


def taylor(gradients: Gradients) -> Tensor:
    """Sum over a channel's filter of |weight x gradient of the mean loss|: how much the loss would change, to first
    order, if each weight by itself were zero. The readers' slices for a stream.

    Signs are dropped before the sum: near a minimum the signed contributions of a whole filter cancel, and the squared
    sum of them ranks filters far worse (docs/metrics.md).
    """
    return (gradients.weights * gradients.weight_gradients).abs().sum(1)


ENTRY = Metric(needs="gradients", score=taylor)
