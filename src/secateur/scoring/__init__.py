"""What a channel is worth: statistics in one pass over the data, and metrics that turn them into scores."""

from secateur.scoring.collect import collect
from secateur.scoring.metrics import METRICS, Channels, Metric
from secateur.scoring.moments import ClassMoments
from secateur.scoring.score import all_metrics, score, score_by
from secateur.scoring.scores import Scores, load_scores, rank_correlation, save_scores
from secateur.scoring.statistics import Statistics, TapMoments

__all__ = [
    "METRICS",
    "Channels",
    "ClassMoments",
    "Metric",
    "Scores",
    "Statistics",
    "TapMoments",
    "all_metrics",
    "collect",
    "load_scores",
    "rank_correlation",
    "save_scores",
    "score",
    "score_by",
]
