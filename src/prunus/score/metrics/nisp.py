"""Importance propagated back from the features that the classifier reads (NISP, Yu et al. 2018)."""

from torch import Tensor

from prunus.score.evidence import Importance
from prunus.score.metrics import Metric


def nisp(importance: Importance) -> Tensor:
    """Sum over positions of the importance s_l = |W_(l+1)|' s_(l+1), Yu et al. 2018, Eqn. 20.

    It starts from the ranking of the classifier's inputs by infinite feature selection (Roffo et al. 2015) and runs
    back through the graph (see `prunus.score.importance`).
    """
    return importance.values


ENTRY = Metric(
    name="nisp",
    help="Importance propagated back from the features that the classifier reads (NISP, Yu et al. 2018)",
    needs="importance",
    score=nisp,
)
