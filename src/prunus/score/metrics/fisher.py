"""Fisher information of a channel's gate (Theis et al. 2018)."""

from torch import Tensor

from prunus.score.evidence import Gradients
from prunus.score.metrics import Metric


def fisher(gradients: Gradients) -> Tensor:
    """1 / (2 N) sum over images of (sum over positions of activation x gradient of the image's loss)^2.

    The second-order change of the loss if the channel is removed, with the Fisher matrix as the Hessian. Activation
    and gradient are those of the readers' inputs, summed over readers.
    """
    return gradients.effect_squares / (2 * gradients.num_images)


ENTRY = Metric(
    name="fisher", help="Fisher information of a channel's gate (Theis et al. 2018)", needs="gradients", score=fisher
)
