"""Splits: how a cut is split among the units of a network. One split per file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prunus.errors import DecideError
from prunus.util.registry import Entry, Registry

if TYPE_CHECKING:
    from prunus.decide.goal import Budget
    from prunus.decide.sensitivity import Sensitivity
    from prunus.decide.settings import SplitSettings
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.plan import Plan
    from prunus.score.scores import Scores

# Settings (with k and alpha filled in) -> what held-out images say of each unit. The caller has the images.
Rank = Callable[["SplitSettings"], "Sensitivity"]


@dataclass(frozen=True)
class SplitTask:
    """Everything that a split may look at."""

    graph: ChannelGraph  # of the network that loses channels
    scores: Scores
    budget: Budget
    settings: SplitSettings
    rank: Rank
    original_widths: Mapping[str, int] = field(default_factory=dict)  # unit -> width in the original network


@dataclass(frozen=True, kw_only=True)
class Split(Entry):
    """A split by name."""

    plan: Callable[[SplitTask], Plan]
    ranks: bool  # held-out images rank the units
    metric: str  # the metric that suits it, if none is given
    needs_errors: bool = False  # scores must be errors that add up, as those of a metric with `adds_up`


SPLITS: Registry[Split] = Registry("split", "prunus.decide.splits", DecideError)
