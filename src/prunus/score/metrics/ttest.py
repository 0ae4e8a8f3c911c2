"""Generalised Student's t-test (Welch's form)."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric
from prunus.score.moments import Partition, one_versus_rest, over


def ttest(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-Ttest = mean over classes of |mu - nu| / sqrt((v + r) / |P| + (w + r) / |Q|); Eqn. 6.

    |P| and |Q| count images, not activations. The ridge r is ours. It is added to the variances, so that it means the
    same for any number of images: added to the noise itself, 1e-4 is 20 times the noise of 4,500 images of a class.
    """

    def statistic(p: Partition) -> Tensor:
        noise = (p.variance + ridge) / p.num_images + (p.rest_variance + ridge) / p.num_rest_images
        return over(p.gap.abs(), noise.sqrt())

    return one_versus_rest(channels.moments, statistic)


ENTRY = Metric(name="ttest", help="Generalised Student's t-test (Welch's form)", needs="moments", score=ttest)
