"""Average rank of the feature maps (HRank, Lin et al. 2020)."""

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.score.evidence import Maps
from prunus.score.metrics import Metric


def hrank(maps: Maps, images: float = 500) -> Tensor:
    """Mean over images of the rank of the channel's map [height, width], Eqn. 7 of Lin et al. 2020.

    A singular value counts if it is above max(height, width) x epsilon x the largest one. The ranks change little
    from image to image, so at most `images` images are used, as in the publication.
    """
    some = every_few(maps, images).float()  # [N, n, d]; in float64 rounding of the network would count as rank
    pictures = some.view(*some.shape[:2], maps.height, -1)
    ranks: Tensor = torch.linalg.matrix_rank(pictures)
    return ranks.double().mean(0)


def every_few(maps: Maps, images: float) -> Tensor:
    """At most `images` of the maps, spread evenly over the sample: [N, n, d]."""
    assert maps.maps is not None
    if not images >= 1:
        raise ScoreError(f"images must be at least 1, got {images!r}")
    count = min(len(maps.maps), int(images))
    return maps.maps[torch.linspace(0, len(maps.maps) - 1, count).round().long()]


ENTRY = Metric(
    name="hrank",
    help="Average rank of the feature maps (HRank, Lin et al. 2020)",
    needs="maps",
    needs_classes=False,
    score=hrank,
)
