"""differences.md: how a run differs from the paper, in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prunus.run.paper import FIXED, contradiction, departures, left_open
from prunus.run.settings import Settings

DIFFERENCES = "differences.md"
PAPER = "Liu, Wentzlaff and Kung, *Rethinking Class-Discrimination Based CNN Channel Pruning*, 2020 (arXiv:2004.14492)"


def differences(settings: Settings, about: Mapping[str, Any]) -> str:
    """What of a run is not as in the paper, as markdown.

    Args:
        settings: Those of the run, filled in.
        about: What the run's config.json says of the command: data set and network have names there.
    """
    command = about.get("command") or {}
    data, model = str(command.get("data") or ""), str(command.get("model") or "")
    values = settings.to_dict()
    other: list[str] = []
    same: list[str] = []
    for name in (*FIXED, "alpha"):
        words = contradiction(name, getattr(settings, name))
        if words is None:
            same.append(name)
        elif name != "alpha" or settings.ranks:  # alpha is of Algorithm 1
            other.append(f"`{name}` is {_shown(values.get(name))}: {words}")
    by_its_method = not other
    changed = departures(settings, data or "cifar10", model)
    if not settings.retrains_at_all:  # a schedule that nothing follows
        changed = [text for text in changed if text.partition(" ")[0] not in ("preset", "lr", "mixed_precision")]
    other += [f"{text} (the paper -> this run)" for text in changed]
    if not data:
        other.append("the data set has no name: schedule and number of images are compared with those for CIFAR")
    open_points = left_open(settings, data or "cifar10", command.get("holdout")) if by_its_method else ()
    return as_markdown(other, open_points, same)


def as_markdown(other: Sequence[str], open_points: Sequence[str] = (), same: Sequence[str] = ()) -> str:
    """The file: what differs, what the paper leaves open, and which settings are the paper's."""
    lines = ["# How this run differs from the paper", "", f"The paper: {PAPER}.", ""]
    lines += ["## Different", "", *(f"- {text}" for text in other or ["nothing that settings can say"]), ""]
    if open_points:
        lines += ["## Left open in the paper, and what was done here", "", *(f"- {text}" for text in open_points), ""]
    if same:
        lines += ["## As in the paper", "", f"The settings {', '.join(f'`{name}`' for name in same)}.", ""]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "not set" if value is None else "on" if value is True else "off" if value is False else str(value)
