"""LASSO choice of channels that rebuild the next layer's output (CP, He et al. 2017)."""

import torch
from torch import Tensor

from prunus.score.evidence import Contributions
from prunus.score.metrics import Metric

STEPS = 8  # of the path for each channel, at most: a channel may leave the path and come back


def cp(contributions: Contributions) -> Tensor:
    """The largest penalty at which the channel still has a coefficient other than 0.

    He et al. 2017, Eqn. 2: minimise over b  1/2 E|Y - sum_i b_i X_i W_i'|^2 + penalty |b|_1, where each W_i (the
    readers' weights for channel i) has norm 1 and Y is the readers' output. They raise the penalty until as few
    channels as wanted are left; the exact path of all penalties (LARS) gives this for every number. Their second step,
    least squares for the remaining weights, is the repair `solve`. Channels without any effect score 0.
    """
    from sklearn.linear_model import lars_path_gram

    norms = contributions.norms
    alive = (norms > 0) & (contributions.products.diagonal() > 0)
    scores = torch.zeros_like(norms)
    if not bool(alive.any()):
        return scores
    scale = norms[alive]
    gram = contributions.products[alive][:, alive] / (scale[:, None] * scale)  # of outputs with weights of norm 1
    target = gram @ scale  # b = norms gives Y
    unit = float(target.abs().max())
    gram.diagonal().add_(1e-10 * gram.diagonal().mean())  # channels that are copies of each other stay apart
    penalties, _, path = lars_path_gram(
        (target / unit).numpy(),
        (gram / unit).numpy(),
        n_samples=1,
        method="lasso",
        copy_X=True,
        copy_Gram=True,
        max_iter=STEPS * len(gram),
    )
    used = torch.from_numpy(path != 0)  # [channels, knots], penalties falling; a coefficient grows after its knot
    first = torch.where(used.any(1), used.int().argmax(1) - 1, len(penalties) - 1)
    scores[alive] = torch.from_numpy(penalties)[first.clamp(min=0)] * unit
    return scores


ENTRY = Metric(
    name="cp",
    help="LASSO choice of channels that rebuild the next layer's output (CP, He et al. 2017)",
    needs="contributions",
    score=cp,
)
