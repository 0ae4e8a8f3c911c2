"""A plan: which channels of each unit are kept, in the numbering of the original network."""

from __future__ import annotations

import json
import math
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from prunus.errors import FileError, PlanError
from prunus.graph.units import AttentionCut, Keep, Norms, Streams, Unit
from prunus.util.typed_json import versioned_object

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph


# -- kept channels of single units


def checked_indices(name: str, width: int, kept: Sequence[int], can_vanish: bool = False) -> tuple[int, ...]:
    """Kept channels as an ascending tuple. Raises PlanError unless they are distinct channels of the unit.

    can_vanish: none at all are right too.
    """
    array = np.asarray(kept)
    if array.size == 0 and can_vanish:
        return ()
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


def checked_kept(unit: Unit, kept: Sequence[int]) -> tuple[int, ...]:
    """Kept channels as an ascending tuple. Raises PlanError also if they do not fit the blocks of the unit."""
    indices = checked_indices(unit.name, unit.width, kept, unit.can_vanish)
    counts = np.bincount(unit.blocks[list(indices)], minlength=unit.granule)
    if (counts != counts[0]).any():
        fewest, most = (
            f"{counts[block]} of channels {_some([str(i) for i in np.flatnonzero(unit.blocks == block)], 4)}"
            for block in (int(counts.argmin()), int(counts.argmax()))
        )
        raise PlanError(
            f"unit {unit.name!r} has {unit.granule} blocks, and the same number of channels must be kept in each: "
            f"{fewest} are kept, but {most}. graph.balance(keep) adds the missing channels."
        )
    return indices


def balanced(unit: Unit, kept: Sequence[int]) -> tuple[int, ...]:
    """`kept` and the fewest further channels such that the same number is kept in each block of the unit."""
    indices = checked_indices(unit.name, unit.width, kept, unit.can_vanish)
    if not indices or unit.granule == 1:
        return indices
    chosen = np.zeros(unit.width, dtype=bool)
    chosen[list(indices)] = True
    most = max(1, int(np.bincount(unit.blocks[chosen], minlength=unit.granule).max()))
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        missing = most - int(chosen[inside].sum())
        chosen[inside[~chosen[inside]][:missing]] = True
    return tuple(np.flatnonzero(chosen).tolist())


def _some(names: Sequence[str], limit: int = 6) -> str:
    """The first few names of a list, for messages."""
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")


FORMAT = "prunus-plan"
VERSION = 1
SHOWN = 10  # units in the text of a plan
# How a network is traced for a plan: arguments of `trace`, with the default first.
WAYS: dict[str, tuple[str, str]] = {
    "streams": ("select", "coupled"),
    "norms": ("whole", "compensated"),
    "attention": ("heads", "dims"),
}


@dataclass(frozen=True, repr=False)
class Plan:
    """The channels that each unit keeps. Units that are not pruned are listed too, and keep all their channels.

    Attributes:
        fingerprint: Of the structure of the network it belongs to.
        streams: How streams are treated: "select" or "coupled".
        example: Shapes and types of the example input, so that the network can be traced again.
        widths: Unit -> its number of channels in that network.
        keep: Unit -> kept channels, ascending.
        norms: Whether norms over channels may lose some: "whole" or "compensated".
        attention: What attention loses: "heads" or "dims".
    """

    fingerprint: str
    streams: Streams
    example: Any
    widths: Mapping[str, int]
    keep: Mapping[str, tuple[int, ...]]
    norms: Norms = "whole"
    attention: AttentionCut = "heads"

    @classmethod
    def of(cls, graph: ChannelGraph, keep: Keep) -> Plan:
        """A plan for `graph` in which each unit in `keep` keeps these channels, and other units keep all of theirs.

        Raises:
            PlanError: the channels are not those of a unit, or the network cannot be pruned like this.
        """
        if not isinstance(keep, Mapping):
            raise PlanError(f"expected a dict of unit -> kept channels, got {type(keep).__name__}")
        unknown = [name for name in keep if name not in graph.units]
        if unknown:
            layer = unknown[0].partition(":")[0]
            why = f"{layer} is frozen: {graph.frozen[layer]}." if layer in graph.frozen else ""
            units = _some(list(graph.units))
            raise PlanError(f"no unit is called {unknown[0]!r}. The network's units are: {units}. {why}")
        kept = {
            name: checked_kept(unit, keep[name]) if name in keep else tuple(range(unit.width))
            for name, unit in graph.units.items()
        }
        graph.check(kept)
        widths = {name: unit.width for name, unit in graph.units.items()}
        return cls(graph.fingerprint, graph.streams, graph.example_shapes, widths, kept, graph.norms, graph.attention)

    def then(self, later: Plan) -> Plan:
        """Both plans in one, for the network of this plan. `later` is a plan for the network that this plan gives."""
        if not isinstance(later, Plan):
            raise PlanError(f"expected a plan, got {type(later).__name__}")
        for way in WAYS:
            mine, other = getattr(self, way), getattr(later, way)
            if mine != other:
                raise PlanError(f"a plan with {way}={mine!r} cannot be followed by one with {way}={other!r}")
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
        return replace(self, widths=dict(self.widths), keep=keep)

    @property
    def ways(self) -> dict[str, Any]:
        """The arguments with which `trace` finds the units of this plan."""
        return {way: getattr(self, way) for way in WAYS}

    def removed(self) -> dict[str, int]:
        """unit -> number of channels that it loses."""
        return {name: self.widths[name] - len(kept) for name, kept in self.keep.items()}

    def __repr__(self) -> str:
        """A short table: the channels that each pruned unit keeps, of those that it has."""
        kept, width = sum(map(len, self.keep.values())), sum(self.widths.values())
        pruned = [name for name, lost in self.removed().items() if lost]
        head = f"Plan: {len(pruned)} of {len(self.keep)} units pruned, {kept:,} of {width:,} channels kept"
        longest = max(map(len, pruned[:SHOWN]), default=0)
        rows = [f"  {name:{longest}}  {len(self.keep[name]):5} of {self.widths[name]}" for name in pruned[:SHOWN]]
        more = [f"  and {len(pruned) - SHOWN} more units"] if len(pruned) > SHOWN else []
        return "\n".join([head, *rows, *more])

    def difference_from(self, graph: ChannelGraph) -> str | None:
        """Why the plan does not belong to a network, in words; None if it does."""
        network, units = type(graph.model).__name__, graph.units
        for way in WAYS:
            mine, other = getattr(self, way), getattr(graph, way)
            if mine != other:
                return f"it was made with {way}={mine!r}, this graph with {other!r}"
        for name in {**self.widths, **units}:
            if name not in units:
                return f"it has a unit {name!r} that {network} does not have"
            if name not in self.widths:
                return f"it lacks the unit {name!r} of {network}"
            if units[name].width != self.widths[name]:
                return f"unit {name!r} has {self.widths[name]} channels in the plan and {units[name].width} here"
        same = self.fingerprint == graph.fingerprint
        return None if same else "the units are the same, but layers or groups differ"

    # -- files

    def to_json(self) -> str:
        """The plan as JSON text."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "streams": self.streams,
            **{way: value for way, value in self.ways.items() if way != "streams" and value != WAYS[way][0]},
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
            ways = {way: data[way] if way == "streams" else data.get(way, known[0]) for way, known in WAYS.items()}
            for way, (one, other) in WAYS.items():
                if ways[way] not in (one, other):
                    raise ValueError(f'"{way}" must be "{one}" or "{other}", not {ways[way]!r}')
            widths, keep = {}, {}
            for name, unit in data["units"].items():
                width = widths[str(name)] = unit["width"]
                if type(width) is not int or width < 1:
                    raise ValueError(f"the width of {name!r} must be a whole number above 0, not {width!r}")
                keep[str(name)] = checked_indices(str(name), width, unit["keep"], can_vanish=True)
            return cls(str(data["fingerprint"]), example=data["example"], widths=widths, keep=keep, **ways)
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


# -- examples in JSON: shapes and types of tensors, and the values of whole numbers, which may be labels

_FEW = 4096  # whole numbers that are stored one by one


def example_data(value: Any) -> Any:
    """An example, or a part of one, as JSON. What JSON cannot hold is {"unknown": its class}, and cannot be loaded."""
    if value is None or (isinstance(value, bool | int | float | str) and type(value).__module__ == "builtins"):
        return value
    if isinstance(value, Tensor):
        data: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        if not value.is_floating_point() and not value.is_complex() and value.numel():
            small = value.numel() <= _FEW
            data["values"] = value.reshape(-1).tolist() if small else [value.reshape(-1)[0].item()]
        return data
    if type(value) in (list, tuple, torch.Size):
        parts = [example_data(part) for part in value]
        return parts if type(value) is list else {"tuple": parts}
    if isinstance(value, dict) and type(value) in (dict, OrderedDict):
        if all(isinstance(key, str) for key in value) and not value.keys() & _KEYS:
            return {key: example_data(part) for key, part in value.items()}
        return {"items": [[example_data(key), example_data(part)] for key, part in value.items()]}
    if isinstance(value, torch.dtype | torch.device):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, slice):
        return {"slice": [example_data(part) for part in (value.start, value.stop, value.step)]}
    return {"unknown": type(value).__name__}


_KEYS = frozenset(("shape", "tuple", "items", "dtype", "device", "slice", "unknown"))


def example_from(data: Any, like: Tensor) -> Any:
    """The example of `example_data`, with zeros for numbers that were not stored, in the precision of `like`."""
    if isinstance(data, list):
        return [example_from(part, like) for part in data]
    if not isinstance(data, dict):
        return data
    if set(data) in ({"shape", "dtype"}, {"shape", "dtype", "values"}):
        dtype = _dtype(data["dtype"])
        dtype = like.dtype if dtype.is_floating_point else dtype
        shape = [int(n) for n in data["shape"]]
        if "values" in data:
            values = torch.tensor(data["values"], dtype=dtype, device=like.device)
            return (values if values.numel() > 1 else values.expand(math.prod(shape))).reshape(shape).clone()
        return torch.zeros(shape, dtype=dtype, device=like.device)
    if len(data) == 1 and (key := next(iter(data))) in _KEYS:
        part = data[key]
        if key == "tuple":
            return tuple(example_from(part, like))
        if key == "items":
            return dict(example_from(pair, like) for pair in part)
        if key == "slice":
            return slice(*example_from(part, like))
        if key == "unknown":
            raise ValueError(f"it contains a {part}, which a file cannot hold")
        return _dtype(part) if key == "dtype" else torch.device(part)
    return {name: example_from(part, like) for name, part in data.items()}


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch's tensors")
    return dtype


# -- the plan that a pruned model was cut by: the model remembers it, outside its state_dict, and `save` checks it

PLANS = "_prunus_plans"  # an attribute of the model; copies of the model have it too
ORIGIN = "_prunus_origin"


def remember_plan(pruned: nn.Module, original: nn.Module, plan: object) -> None:
    """Note that `plan` gave `pruned` from `original`, which may have been pruned before."""
    if not isinstance(plan, Plan):
        pruned.__dict__.pop(PLANS, None)
        return
    plans = [plan]
    for old in plans_of(original):
        try:
            plans.append(old.then(plan))
        except PlanError:  # other streams or units: no single plan leads here from that network
            continue
    pruned.__dict__[PLANS] = tuple(plans)
    pruned.__dict__[ORIGIN] = _Origin(original)


class _Origin:
    """The network that another one was pruned from, as long as somebody else holds it."""

    def __init__(self, model: nn.Module | None) -> None:
        self.of = (lambda: None) if model is None else weakref.ref(model)

    def __deepcopy__(self, memo: object) -> _Origin:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Origin, (None,)


def original_of(model: nn.Module, plan: Plan) -> nn.Module | None:
    """The network that `plan` was made for, if this model was cut by it and the network still exists."""
    network: nn.Module | None = model
    for known in plans_of(model):
        origin = None if network is None else network.__dict__.get(ORIGIN)
        network = None if origin is None else origin.of()
        if known.fingerprint == plan.fingerprint and dict(known.keep) == dict(plan.keep):
            return network
    return None


def plans_of(model: nn.Module) -> tuple[Plan, ...]:
    """The plans that lead to a model: from the original network, and from each network in between."""
    return tuple(model.__dict__.get(PLANS, ()))


def same_origin(model: nn.Module, other: nn.Module) -> None:
    """Note that `model` was cut by the same plans as `other`."""
    if not plans_of(model) and plans_of(other):
        model.__dict__[PLANS] = plans_of(other)


def check_origin(model: Any, plan: Any) -> None:
    """PlanError unless `plan` leads to this model."""
    if not isinstance(model, nn.Module) or not isinstance(plan, Plan):
        kinds = f"{type(model).__name__} and {type(plan).__name__}"
        raise PlanError(f"expected save(model, plan, folder) with a network and its plan, got {kinds}")
    known = plans_of(model)
    if any(old.fingerprint == plan.fingerprint and dict(old.keep) == dict(plan.keep) for old in known):
        return
    name = type(model).__name__
    if known:
        raise PlanError(
            f"the plan does not belong to this {name}: it was cut by a plan that keeps other channels. Save it with "
            "the plan that was given to prunus.prune (after several rounds: first.then(second))"
        )
    if any(plan.removed().values()) and not isinstance(model, fx.GraphModule):  # its copies forget attributes
        raise PlanError(
            f"the plan removes channels, and this {name} was not cut by prunus.prune: save what prune(graph, plan) "
            "returned, not the original network"
        )
