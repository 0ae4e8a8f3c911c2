"""Splits by name, and the settings that decide which units lose channels, and how many. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from prunus.deciding.costs import COSTS
from prunus.errors import DecideError
from prunus.scoring.metrics import DEFAULT_METRIC
from prunus.tasks import Task
from prunus.tasks.quality import task_option
from prunus.timing.engines import ENGINES
from prunus.util.options import Seeded, normalise, option
from prunus.util.registry import Entry, Registry

if TYPE_CHECKING:
    from prunus.deciding.splits import SplitInputs
    from prunus.graph.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Split(Entry):
    """A way to split a cut among the units of a network."""

    plan: Callable[[SplitInputs], Plan]
    ranks: bool = False  # held-out images rank the units
    metric: str = DEFAULT_METRIC  # the metric that suits it, if none is given
    needs_errors: bool = False  # scores must be errors that add up, as those of a metric with `adds_up`


def function_split(function: Callable[..., Any]) -> Split:
    """The split that a user-provided function is: it takes `SplitInputs` and returns a plan."""
    name = getattr(function, "__name__", type(function).__name__)

    def plan(inputs: SplitInputs) -> Plan:
        from prunus.graph.plan import Plan

        made = function(inputs)
        if not isinstance(made, Plan):
            raise DecideError(f"your split {name} must return a prunus.Plan, and returned {type(made).__name__}")
        return made

    return Split(name=name, help="User-provided", plan=plan)


SPLITS: Registry[Split] = Registry("split", "prunus.deciding.splits", DecideError, function_split)


@dataclass(frozen=True)
class RankSettings(Seeded):
    """Which units take part, and how held-out images rank them."""

    split: str | None = option(
        None,
        f"How the cut is split among units: {', '.join(SPLITS)}, or module:function; chosen to suit the run by default",
        group="Layers",
        choices=SPLITS,
    )
    cost: str | Callable[..., float] = option(
        "macs",
        f"Cost that units are compared at: {', '.join(COSTS)}, or module:function",
        group="Layers",
        choices=COSTS,
        user_code=True,
    )
    only: tuple[str, ...] = option(
        (), "Prune only units or layers that match this pattern", group="Layers", several=True
    )
    exclude: tuple[str, ...] = option(
        (), "Do not prune units or layers that match this pattern", group="Layers", several=True
    )
    round_to: int | None = option(1, "Keep widths that are multiples of this", group="Layers", least=1)
    alpha: float = option(
        3.0, "Pruning rate of Eqn. 3, 2 to 4 in the paper; solved if --rounds is given", group="Layers", above=0
    )
    k: int | None = option(None, "Units pruned in each round; a third of them by default", group="Layers", least=1)
    task: str | Task | None = task_option()
    measure: Literal["accuracy", "loss"] | Callable[..., float] = option(
        "accuracy",
        "Rank units by held-out accuracy (the quality of the task) or loss",
        group="Layers",
        choices=("accuracy", "loss"),
        user_code=True,
    )
    exact: bool = option(False, "Rank units on all held-out images, without racing", group="Layers")
    confidence: float = option(
        0.95, "Probability that a race finds the best units", group="Layers", least=0.5, below=1, hidden=True
    )
    tolerance: float = option(
        0.0005, "How far the units that a race finds may be from the best", group="Layers", least=0, hidden=True
    )
    trial_ratio: float = option(
        0.5, "Fraction removed at which the split `ratio` ranks units", group="Layers", above=0, below=1
    )

    def __post_init__(self) -> None:
        """A single pattern may be given as a string, a number as "63M"."""
        normalise(self)


@dataclass(frozen=True)
class SplitSettings(RankSettings):
    """How a cut is split among units: how units are ranked, and how far a round goes."""

    trials: Literal["cut", "repaired"] | None = option(
        None, "Rank units before repair, or after their own repair", group="Layers", choices=("cut", "repaired")
    )
    blocks: bool = option(
        True, "Let whole residual branches be removed where that adds the least error (least_error)", group="Layers"
    )
    rounds: int | None = option(None, "Reach the goal in this number of rounds", group="Layers", least=1)
    whole_steps: bool = option(
        False, "The last round may go past the goal: the units of Algorithm 1 lose all n_l channels", group="Layers"
    )


@dataclass(frozen=True)
class StreamSettings:
    """Which units a network with residual streams has."""

    streams: Literal["select", "coupled"] = option(
        "select",
        "Residual channels: each reader selects its own (select), or all drop them together (coupled)",
        group="Channels",
        choices=("select", "coupled"),
    )


@dataclass(frozen=True)
class TimeSettings:
    """Where time is measured: for a latency target, for cost="latency", and at the end of every run."""

    engine: str | None = option(
        None,
        f"Engine in which time is measured: {', '.join(ENGINES)}; onnxruntime by default if it is installed",
        group="Goal",
        everyday=True,
        choices=ENGINES,
    )
    batch: int = option(1, "Images in a batch whose time is measured", group="Goal", least=1)
    # One thread is measured in processor time, which other programs on the machine hardly change.
    threads: int = option(
        1, "CPU threads of the engine when time is measured", group="Goal", least=1, most=os.cpu_count()
    )
    timing: bool = option(True, "Time the result beside the original in every installed engine", group="Goal")
    latency_table: str | None = option(
        None, "Times of `prunus inspect --latency --out`, measured on the machine where the network ships", group="Goal"
    )


# Settings that only matter where held-out images rank units:
RANKING = ("measure", "cost", "k", "exact", "trials", "whole_steps")


def ranking_settings(settings: SplitSettings) -> list[str]:
    """The settings about ranking that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(SplitSettings)}
    return [name for name in RANKING if getattr(settings, name) != defaults[name]]


def check_split(settings: SplitSettings, *, by_share: bool = False) -> None:
    """Raise DecideError if settings about ranking are given and nothing is ranked, as for a share of every unit."""
    if settings.whole_steps and settings.rounds is not None:
        raise DecideError("a number of rounds meets the goal exactly: leave out rounds, or whole_steps")
    given = ranking_settings(settings)
    if not given or not (by_share or (settings.split is not None and not SPLITS.find(settings.split).ranks)):
        return
    way = "a ratio" if by_share else f'split "{settings.split}"'
    ranking = ", ".join(name for name in SPLITS if SPLITS[name].ranks)
    raise DecideError(
        f"{way} ranks no units, so {' and '.join(given)} would have no effect: leave it out, or use a target with one "
        f"of the splits {ranking}"
    )


def check_k(k: int | None, units: int) -> int:
    """k, by default a third of the units as in the paper."""
    if k is None:
        return max(1, round(units / 3))
    if not 1 <= k <= units:
        raise DecideError(f"k must lie between 1 and the number of units that can lose channels, {units}; got {k}")
    return k
