"""Generalised Student's t-test (Welch's form)."""

from torch import Tensor

from secateur.scoring.evidence import Channels
from secateur.scoring.metrics import Metric
from secateur.scoring.one_versus_rest import Partition, one_versus_rest


def ttest(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-Ttest = mean over classes of |mu - nu| / sqrt(v / |P| + w / |Q| + r); supplement Eqn. 3.

    |P| and |Q| count images, not activations. The ridge r is ours, inside the root.
    """

    def statistic(p: Partition) -> Tensor:
        noise = p.variance / p.num_images + p.rest_variance / p.num_rest_images
        return p.gap.abs() / (noise + ridge).sqrt()

    return one_versus_rest(channels.moments, statistic)


ENTRY = Metric(needs="moments", score=ttest)
