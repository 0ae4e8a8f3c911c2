"""Random scores, a baseline."""

import hashlib

import torch
from torch import Tensor

from prunus.score.evidence import Bare
from prunus.score.metrics import Metric


def random(bare: Bare, seed: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) that depend on the seed and the unit's name only."""
    digest = hashlib.sha256(f"{seed}/{bare.unit}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.rand(bare.width, dtype=torch.float64, generator=generator)


ENTRY = Metric(name="random", help="Random scores, a baseline", needs="nothing", score=random)
