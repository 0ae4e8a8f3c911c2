"""What was asked of a run, as plain values that go into its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from secateur.channels.graph import ChannelGraph, Streams
from secateur.errors import DecideError

Repair = Literal["none", "bn", "solve"]


@dataclass(frozen=True)
class Settings:
    """How to prune. Exactly one goal: target, macs, params, max_drop alone, or ratio."""

    # The goal.
    target: float | None = None  # fraction of MACs to remove
    macs: float | None = None  # MACs to be left
    params: float | None = None  # weights to be left
    max_drop: float | None = None  # held-out accuracy that may be lost, fraction of 1; stops before it falls by more
    ratio: float | None = None  # one shot: this share of every unit
    # Scoring.
    metric: str = "reader_energy"  # the best of ours on CIFAR-10; "gsd" is the paper's (docs/metrics.md)
    metric_options: dict[str, Any] = field(default_factory=dict)
    images: int | None = None  # images to score on, a fresh sample each round; None: all
    # Deciding.
    streams: Streams = "select"
    method: Literal["flops", "ratio"] = "flops"
    measure: Literal["accuracy", "loss"] = "accuracy"
    cost: Literal["macs", "params", "latency"] = "macs"
    alpha: float = 3.0
    k: int | None = None
    rounds: int | None = None  # with a target: alpha is solved so that so many rounds reach it
    exact: bool = False
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    round_to: int = 1
    # Getting the accuracy back.
    repair: Repair = "none"
    repair_images: int = 500
    preset: str = "cosine"
    epochs: int | None = None
    lr: float | None = None
    distill: bool = False
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Goal:
    """Where a run is to end."""

    cost: Literal["macs", "params"]
    left: float | None  # cost to be left; None: as far as max_drop allows

    def removed(self, whole: float) -> float | None:
        """The same as a fraction of the whole network's cost."""
        return None if self.left is None else 1 - self.left / whole


def goal_of(settings: Settings, graph: ChannelGraph) -> Goal:
    """The goal in numbers for this network, checked."""
    given = [n for n in ("target", "macs", "params", "ratio") if getattr(settings, n) is not None]
    if len(given) > 1:
        raise DecideError(f"give one goal, not {len(given)}: {', '.join(given)}")
    if settings.ratio is not None and not 0 < settings.ratio < 1:
        raise DecideError(f"the ratio is the fraction removed, above 0 and below 1; got {settings.ratio}")
    if settings.max_drop is not None and not 0 <= settings.max_drop < 1:
        raise DecideError(f"max_drop is a fraction of 1 (0.005 is half a point), got {settings.max_drop}")
    if settings.rounds is not None and settings.rounds < 1:
        raise DecideError(f"rounds must be at least 1, got {settings.rounds}")
    if settings.target is not None and not 0 < settings.target < 1:
        raise DecideError(f"the target is the fraction to remove, above 0 and below 1; got {settings.target}")
    if settings.target is not None:
        return Goal("macs", (1 - settings.target) * graph.macs)
    for name, whole in (("macs", graph.macs), ("params", graph.params)):
        left = getattr(settings, name)
        if left is not None:
            if not 0 < left < whole:
                raise DecideError(
                    f"{name} to be left must lie between 0 and what the network has, {whole:,}; got {left:,.0f}"
                )
            return Goal("macs" if name == "macs" else "params", float(left))
    if settings.max_drop is None and settings.ratio is None:
        raise DecideError("give a goal: target, macs, params, max_drop or ratio")
    return Goal("macs", None)
