"""What was asked of a run, as plain values that go into its folder."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Streams
from secateur.errors import DecideError
from secateur.scoring.metrics import DEFAULT_METRIC
from secateur.training.presets import DEFAULT_PRESET, preset_of

Repair = Literal["none", "bn", "solve"]
REBUILT = "rebuilt"
SOME_IMAGES, MANY_IMAGES = 500, 2000  # for a repair
SMALL = 64 * 64  # pixels
WITHOUT_RANKS = ("alike", "errors")


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
    metric: str | None = None  # None: the usual one, or "rebuilt" where a solve is all that follows
    metric_options: dict[str, Any] = field(default_factory=dict)
    images: int | None = None  # images to score on, a fresh sample each round; None: all
    # Deciding.
    streams: Streams = "select"
    method: Literal["flops", "ratio", "alike", "errors"] = "flops"  # the last two rank nothing: see `ranks`
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
    repair_images: int | None = None  # None: 500, or 2,000 small ones where nothing is retrained
    judge: Literal["cut", "repaired"] | None = None  # with a repair: how sensitivity sees each unit
    preset: str = DEFAULT_PRESET
    epochs: int | None = None  # of each round; None: the preset's
    last_epochs: int | None = None  # of the round that meets the goal; None: as many as the others
    lr: float | None = None
    distill: bool = False
    seed: int = 0

    @property
    def ranks(self) -> bool:
        """Whether held-out images rank the units. Not so with a ratio, with "alike" (one share of every unit) and with
        "errors" (the split for which the errors of "rebuilt" add up to the least): there is no sensitivity then."""
        return self.ratio is None and self.method not in WITHOUT_RANKS

    @property
    def asked_of_ranks(self) -> list[str]:
        """What was asked of a ranking: nobody who says how units are to be ranked gets a run that ranks none."""
        return [name for name, usual in USUAL_RANKS.items() if getattr(self, name) != usual]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


# How held-out images rank units, where nothing is said of it.
USUAL_RANKS = {name: getattr(Settings(), name) for name in ("measure", "cost", "k", "exact", "judge")}


def only_solved(settings: Settings) -> bool:
    """Whether a solve is all that gets the accuracy back."""
    return settings.repair == "solve" and settings.epochs == 0 and not settings.last_epochs


def filled(settings: Settings, pixels: int = 0) -> Settings:
    """What was left open, by what suits the case (docs/repair.md): where a solve is all that gets the accuracy back,
    channels go by what it cannot rebuild, units are judged after it, and it sees more images if they are small.

    pixels: of one image.
    """
    solved = only_solved(settings)
    settings = replace(settings, metric=settings.metric or (REBUILT if solved else DEFAULT_METRIC))
    if settings.repair == "none":
        return settings
    judge: Literal["cut", "repaired"] = "repaired" if solved else "cut"
    images = settings.repair_images
    if images is None:  # the activations of all of them are held in memory
        images = MANY_IMAGES if solved and pixels <= SMALL else SOME_IMAGES
    return replace(settings, judge=settings.judge or judge, repair_images=images)


@dataclass(frozen=True)
class Goal:
    """Where a run is to end."""

    cost: Literal["macs", "params"]
    left: float | None  # cost to be left; None: as far as max_drop allows

    def whole(self, graph: ChannelGraph) -> int:
        """What a network costs."""
        return graph.macs if self.cost == "macs" else graph.params

    def met(self, graph: ChannelGraph, macs: int, params: int) -> bool:
        """Whether so much being left is within 0.5% of the original network's cost of the goal."""
        left = macs if self.cost == "macs" else params
        return self.left is not None and left <= self.left + 0.005 * self.whole(graph)


def check_settings(settings: Settings) -> None:
    """Refuse at once what would only be noticed after a long time: after scoring, or when retraining begins."""
    for name, known in _KNOWN.items():
        if getattr(settings, name) not in known:
            raise DecideError(
                f"{name} must be one of {', '.join(filter(None, known))}; got {getattr(settings, name)!r}"
            )
    for name, least in (
        ("k", 1),
        ("rounds", 1),
        ("images", 1),
        ("round_to", 1),
        ("repair_images", 1),
        ("epochs", 0),
        ("last_epochs", 0),
    ):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise DecideError(f"{name} must be at least {least}, got {value}")
    errors = settings.metric == REBUILT or (settings.metric is None and only_solved(settings))
    if settings.method == "errors" and not errors:
        raise DecideError(f'method "errors" adds up errors, which only the metric "{REBUILT}" gives: ask for that too')
    if not settings.ranks and settings.asked_of_ranks:
        way = f'method "{settings.method}"' if settings.ratio is None else "a ratio"
        raise DecideError(
            f"{way} ranks no units, so {' and '.join(settings.asked_of_ranks)} would do nothing: leave that out, or "
            'take a target with method "flops" or "ratio"'
        )
    if not 0 < settings.alpha < math.inf:
        raise DecideError(f"alpha must be above 0 (the paper takes 2 to 4), got {settings.alpha}")
    preset_of(settings.preset, epochs=settings.epochs or None, lr=settings.lr)


_KNOWN = {
    "method": ("flops", "ratio", *WITHOUT_RANKS),
    "measure": ("accuracy", "loss"),
    "cost": ("macs", "params", "latency"),
    "repair": ("none", "bn", "solve"),
    "judge": ("cut", "repaired", None),
    "streams": ("select", "coupled"),
}


def goal_of(settings: Settings, graph: ChannelGraph) -> Goal:
    """The goal in numbers for this network, checked. A goal that the network meets already is an error."""
    given = [n for n in ("target", "macs", "params", "ratio") if getattr(settings, n) is not None]
    if len(given) > 1:
        raise DecideError(f"give one goal, not {len(given)}: {', '.join(given)}")
    if settings.ratio is not None and not 0 < settings.ratio < 1:
        raise DecideError(f"the ratio is the fraction removed, above 0 and below 1; got {settings.ratio}")
    if settings.max_drop is not None and not 0 <= settings.max_drop < 1:
        raise DecideError(
            f"max_drop must be at least 0 and below 100 points; got {100 * settings.max_drop:g} points "
            "(in Python it is a fraction of 1: 0.005 is half a point)"
        )
    if settings.target is not None and not 0 < settings.target < 1:
        raise DecideError(f"the target is the fraction to remove, above 0 and below 1; got {settings.target}")
    if settings.target is not None:
        return Goal("macs", (1 - settings.target) * graph.macs)
    for name, whole in (("macs", graph.macs), ("params", graph.params)):
        left = getattr(settings, name)
        if left is not None:
            if left >= whole:
                raise DecideError(
                    f"the goal is met already: the network has {whole:,} {name}, {left:,.0f} are asked for"
                )
            if not left > 0:
                raise DecideError(f"{name} to be left must be above 0 (the network has {whole:,}); got {left:,.0f}")
            return Goal("macs" if name == "macs" else "params", float(left))
    if settings.last_epochs is not None and settings.ratio is None:
        raise DecideError(
            "last_epochs needs a goal in MACs or weights: with max_drop alone no round knows that it is the last"
        )
    if settings.method in WITHOUT_RANKS and settings.ratio is None:
        raise DecideError(
            f'method "{settings.method}" needs a target, macs, params or ratio: max_drop alone says no share'
        )
    if settings.max_drop is None and settings.ratio is None:
        raise DecideError("give a goal: target, macs, params, max_drop or ratio")
    return Goal("macs", None)
