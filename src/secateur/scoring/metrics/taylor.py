"""First-order Taylor expansion on weights (Molchanov et al. 2019)."""

from torch import Tensor

from secateur.scoring.metrics.evidence import Gradients


def taylor(gradients: Gradients) -> Tensor:
    """(sum over a channel's filter of weight x gradient of the mean loss)^2: the squared first-order change of the
    loss if the filter were zero. The readers' slices for a stream."""
    return (gradients.weights * gradients.weight_gradients).sum(1).square()
