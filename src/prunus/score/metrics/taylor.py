"""First-order Taylor expansion on weights (Molchanov et al. 2019)."""

from torch import Tensor

from prunus.score.evidence import Gradients
from prunus.score.metrics import Metric


def taylor(gradients: Gradients) -> Tensor:
    """Sum over a channel's filter (the readers' slices for a stream) of |weight x gradient of the mean loss|.

    Each term is the first-order change of the loss if that weight alone is set to zero. Absolute values are taken
    before the sum, because near a minimum the signed terms of a whole filter cancel. Molchanov et al. square instead:
    each term, or the sum over the filter.
    """
    return (gradients.weights * gradients.weight_gradients).abs().sum(1)


ENTRY = Metric(
    name="taylor",
    help="First-order Taylor expansion on weights (Molchanov et al. 2019)",
    needs="gradients",
    score=taylor,
)
