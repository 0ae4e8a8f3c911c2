"""Channel independence: nuclear norm that is lost with the channel's map (CHIP, Sui et al. 2021)."""

import torch
from torch import Tensor

from prunus.score.evidence import Maps
from prunus.score.metrics import Metric
from prunus.score.metrics.hrank import every_few


def chip(maps: Maps, images: float = 128) -> Tensor:
    """Mean over images of |A|_* - |A without row i|_*, with the unit's maps as the rows of A [n, d]; Sui et al. Eqn. 4.

    A singular value of A is the square root of an eigenvalue of A A' (or A' A, whichever is smaller). This costs n
    eigenvalue problems per image, so at most `images` images are used.
    """
    total = torch.zeros((), dtype=torch.float64)
    some = every_few(maps, images)
    for image in some:  # [n, d]
        total = total + _independence(image.double())
    return total / len(some)


def _independence(rows: Tensor) -> Tensor:
    """[n] loss of nuclear norm without each row."""
    n, d = rows.shape
    products = rows @ rows.T if n <= d else rows.T @ rows
    whole = _nuclear_norm(products)
    if n > d:
        left = [products - torch.outer(row, row) for row in rows]
        return whole - torch.stack([_nuclear_norm(matrix) for matrix in left])
    keep = ~torch.eye(n, dtype=torch.bool)
    left = products.expand(n, n, n)[keep[:, :, None] & keep[:, None, :]].reshape(n, n - 1, n - 1)  # type: ignore[assignment]
    return whole - _nuclear_norm(left)  # type: ignore[arg-type]


def _nuclear_norm(products: Tensor) -> Tensor:
    """Sum of the singular values of A from A A' [..., k, k]."""
    values: Tensor = torch.linalg.eigvalsh(products)
    return values.clamp(min=0).sqrt().sum(-1)


ENTRY = Metric(
    name="chip",
    help="Channel independence: nuclear norm that is lost with the channel's map (CHIP, Sui et al. 2021)",
    needs="maps",
    needs_classes=False,
    score=chip,
)
