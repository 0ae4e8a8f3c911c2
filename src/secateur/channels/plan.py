"""A plan: which channels of each unit are kept, in the numbering of the original network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.base.parsing import versioned_object
from secateur.channels.kept_channels import checked_indices, checked_kept, some
from secateur.channels.units import Keep
from secateur.errors import FileError, PlanError

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph

FORMAT = "secateur-plan"
VERSION = 1
SHOWN = 10  # units in the text of a plan


@dataclass(frozen=True, repr=False)
class Plan:
    """The channels that each unit keeps. Units that are not pruned are listed too, and keep all their channels."""

    fingerprint: str  # of the structure of the network it belongs to
    streams: str  # how streams are treated: "select" or "coupled"
    example: Any  # shapes and types of the example input, so that the network can be traced again
    widths: Mapping[str, int]  # unit -> its number of channels in that network
    keep: Mapping[str, tuple[int, ...]]  # unit -> kept channels, ascending

    @classmethod
    def of(cls, graph: ChannelGraph, keep: Keep) -> Plan:
        """A plan for `graph` in which each unit in `keep` keeps these channels, and other units keep all of theirs."""
        if not isinstance(keep, Mapping):
            raise PlanError(f"expected a dict of unit -> kept channels, got {type(keep).__name__}")
        unknown = [name for name in keep if name not in graph.units]
        if unknown:
            raise PlanError(
                f"no unit is called {unknown[0]!r}. The network's units are: {some(list(graph.units))}. "
                f"{_why_frozen(graph, unknown[0])}"
            )
        kept = {
            name: checked_kept(unit, keep[name]) if name in keep else tuple(range(unit.width))
            for name, unit in graph.units.items()
        }
        graph.check(kept)
        widths = {name: unit.width for name, unit in graph.units.items()}
        return cls(graph.fingerprint, graph.streams, graph.example_shapes, widths, kept)

    def then(self, later: Plan) -> Plan:
        """Both plans in one, for the network of this plan. `later` is a plan for the network that this plan gives."""
        if not isinstance(later, Plan):
            raise PlanError(f"expected a plan, got {type(later).__name__}")
        if self.streams != later.streams:
            raise PlanError(
                f"a plan with streams={self.streams!r} cannot be followed by one with streams={later.streams!r}"
            )
        for name, width in later.widths.items():
            if name not in self.keep:
                raise PlanError(f"the later plan has a unit {name!r} that the first plan does not have")
            if width != len(self.keep[name]):
                raise PlanError(
                    f"the first plan leaves {len(self.keep[name])} channels in {name!r}, but the later plan is for a "
                    f"network with {width}. Trace the network that the first plan gives, and plan on that."
                )
        keep = {
            name: tuple(kept[i] for i in later.keep[name]) if name in later.keep else kept
            for name, kept in self.keep.items()
        }
        return Plan(self.fingerprint, self.streams, self.example, dict(self.widths), keep)

    def removed(self) -> dict[str, int]:
        """unit -> number of channels that it loses."""
        return {name: self.widths[name] - len(kept) for name, kept in self.keep.items()}

    def __repr__(self) -> str:
        """A short table: the channels that each pruned unit keeps, of those that it has."""
        kept, width = sum(map(len, self.keep.values())), sum(self.widths.values())
        pruned = [name for name, lost in self.removed().items() if lost]
        head = f"Plan: {len(pruned)} of {len(self.keep)} units pruned, {kept:,} of {width:,} channels kept"
        names = pruned[:SHOWN]
        longest = max(map(len, names), default=0)
        rows = [f"  {name:{longest}}  {len(self.keep[name]):5} of {self.widths[name]}" for name in names]
        more = [f"  and {len(pruned) - SHOWN} more units"] if len(pruned) > SHOWN else []
        return "\n".join([head, *rows, *more])

    # -- files

    def to_json(self) -> str:
        """The plan as JSON text."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "streams": self.streams,
            "example": self.example,
        }
        units = {name: {"width": self.widths[name], "keep": list(kept)} for name, kept in self.keep.items()}
        rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(unit)}" for name, unit in units.items())
        return json.dumps(head, indent=2)[:-2] + ',\n  "units": {\n' + rows + "\n  }\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the text that `to_json` returns."""
        data = versioned_object(text, "plan", FORMAT, VERSION)
        try:
            units = data["units"]
            _check_fields(data)
            return cls(
                str(data["fingerprint"]),
                str(data["streams"]),
                data["example"],
                {str(name): int(unit["width"]) for name, unit in units.items()},
                {
                    str(name): checked_indices(str(name), int(unit["width"]), unit["keep"])
                    for name, unit in units.items()
                },
            )
        except (KeyError, TypeError, AttributeError, ValueError, PlanError) as error:
            raise FileError(f"not a complete plan: something in it is missing or wrong ({error})") from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read the plan {path}: {error}") from error
        except FileError as error:
            raise FileError(f"{path}: {error}") from error


def _check_fields(data: Mapping[str, Any]) -> None:
    if data["streams"] not in ("select", "coupled"):
        raise ValueError(f'"streams" must be "select" or "coupled", not {data["streams"]!r}')
    for name, unit in data["units"].items():
        if type(unit["width"]) is not int or unit["width"] < 1:
            raise ValueError(f"the width of {name!r} must be a whole number above 0, not {unit['width']!r}")


def _why_frozen(graph: ChannelGraph, name: str) -> str:
    reason = graph.frozen.get(name.partition(":")[0])
    return f"{name.partition(':')[0]} is frozen: {reason}." if reason else ""
