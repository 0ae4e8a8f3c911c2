"""A plan: which channels of each unit are kept, in the numbering of the original network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secateur.channels.units import Unit
from secateur.errors import FileError, PlanError

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph

FORMAT = "secateur-plan"
VERSION = 1


@dataclass(frozen=True)
class Plan:
    """Kept channels per unit. Units that are not touched keep everything, and are listed all the same."""

    fingerprint: str  # of the structure of the network it belongs to
    streams: str  # how streams are treated: "select" or "coupled"
    example: Any  # shapes and types of the example input, so that the network can be traced again
    widths: Mapping[str, int]  # unit -> channels it has in that network
    keep: Mapping[str, tuple[int, ...]]  # unit -> kept channels, ascending

    @classmethod
    def of(cls, graph: ChannelGraph, keep: Mapping[str, Sequence[int]]) -> Plan:
        """A plan for `graph` that keeps `keep[unit]` of each unit named, and all of the others."""
        unknown = [name for name in keep if name not in graph.units]
        if unknown:
            raise PlanError(
                f"no unit is called {unknown[0]!r}. The network's units are: {_some(list(graph.units))}. "
                f"{_why_frozen(graph, unknown[0])}"
            )
        kept = {
            name: _checked(unit, keep[name]) if name in keep else tuple(range(unit.width))
            for name, unit in graph.units.items()
        }
        graph.check(kept)
        widths = {name: unit.width for name, unit in graph.units.items()}
        return cls(graph.fingerprint, graph.streams, graph.example_shapes, widths, kept)

    def then(self, later: Plan) -> Plan:
        """The plan from this plan's network to where `later` leads, which speaks the numbering of the pruned one."""
        if self.streams != later.streams:
            raise PlanError(f"a plan with streams={self.streams!r} cannot go on with one with {later.streams!r}")
        for name, width in later.widths.items():
            if name not in self.keep:
                raise PlanError(f"the later plan has a unit {name!r} that the first plan does not know")
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
        """unit -> how many channels it loses."""
        return {name: self.widths[name] - len(kept) for name, kept in self.keep.items()}

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
        """Read back what `to_json` wrote."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise FileError(f"not a plan: the JSON is broken or cut off ({error})") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FileError(f'not a plan: expected JSON with "format": "{FORMAT}"')
        if data.get("version") != VERSION:
            raise FileError(f"the plan has version {data.get('version')!r}; this secateur reads version {VERSION}")
        try:
            units = data["units"]
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
            raise FileError(f"not a whole plan: something is missing or wrong in it ({error})") from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read the plan {path}: {error}") from error
        except FileError as error:
            raise FileError(f"{path}: {error}") from error


def _checked(unit: Unit, kept: Sequence[int]) -> tuple[int, ...]:
    indices = checked_indices(unit.name, unit.width, kept)
    counts = np.bincount(unit.blocks[list(indices)], minlength=unit.granule)
    if len(set(counts.tolist())) > 1:
        fewest, most = int(counts.argmin()), int(counts.argmax())
        raise PlanError(
            f"unit {unit.name!r} has {unit.granule} blocks, and as many channels must be kept in each: channels "
            f"{_run(unit, fewest)} keep {counts[fewest]}, channels {_run(unit, most)} keep {counts[most]}. "
            "graph.balance(keep) mends that."
        )
    return indices


def checked_indices(name: str, width: int, kept: Sequence[int]) -> tuple[int, ...]:
    """Kept channels as an ascending tuple, once it is sure that they are channels of the unit, each named once."""
    array = np.asarray(kept)
    if array.size == 0:
        raise PlanError(f"unit {name!r} would keep none of its {width} channels; keep at least one")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise PlanError(f"unit {name!r}: kept channels must be a list of whole numbers, got {kept!r:.80}")
    if array.min() < 0 or array.max() >= width:
        wrong = int(array.min()) if array.min() < 0 else int(array.max())
        raise PlanError(f"unit {name!r} has channels 0 to {width - 1}; {wrong} is out of range")
    unique, counts = np.unique(array, return_counts=True)
    if (counts > 1).any():
        raise PlanError(f"unit {name!r}: channel {int(unique[counts > 1][0])} is kept twice; name each channel once")
    return tuple(unique.tolist())


def _run(unit: Unit, block: int) -> str:
    return _some([str(i) for i in np.flatnonzero(unit.blocks == block)], limit=4)


def _some(names: Sequence[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")


def _why_frozen(graph: ChannelGraph, name: str) -> str:
    reason = graph.frozen.get(name.partition(":")[0])
    return f"{name.partition(':')[0]} is frozen: {reason}." if reason else ""
