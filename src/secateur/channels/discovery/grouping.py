"""From channels to units: channels with the same writers and readers form one unit.

Each reader of a stream is a unit of its own, unless streams are coupled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from secateur.channels.discovery.discover import Discovery
from secateur.channels.discovery.drafts import (
    Axes,
    Draft,
    balances_of,
    draft_alone,
    draft_together,
    merge_across,
    set_blocks,
)
from secateur.channels.discovery.places import Places
from secateur.channels.units import Indices, Mask, Reader, Streams, Unit, Writer


@dataclass(frozen=True)
class Grouped:
    """The units of a network."""

    units: dict[str, Unit]
    channels: dict[str, Indices]  # unit -> its channel numbers
    held: dict[int, str]  # channel that its writers must keep -> reason
    selecting: dict[str, str]  # unit of a stream -> its reader, which selects its own channels


def make_units(found: Discovery, streams: Streams) -> Grouped:
    """Group the channels of a network into units."""
    held = dict(found.held)
    alone = found.stream if streams == "select" else np.zeros(found.channels, dtype=bool)
    _hold_unread(found, held)
    _hold_balanced_streams(found, alone, held)
    axes = Axes.of(found)
    together = merge_across(draft_together(found, axes, alone, held), found.balances, found.channels)
    drafts = _named([*together, *draft_alone(found, axes, alone)], found)
    kept = []
    for draft, balances in zip(drafts, balances_of(drafts, found), strict=True):
        reason = set_blocks(draft, balances)
        if reason is None and draft.reader is not None:
            reason = found.held_readers.get(draft.reader)
        if reason is None and len(draft.channels) // draft.granule < 2:
            reason = f"its {len(draft.channels)} channels can only be removed all together"
        if reason is None:
            kept.append(draft)
        elif draft.reader is None:
            held |= {int(c): reason for c in draft.channels if int(c) not in held}
    return Grouped(
        _units(found, kept),
        {draft.name: draft.channels for draft in kept},
        held,
        {draft.name: draft.reader for draft in kept if draft.reader is not None},
    )


def _hold_unread(found: Discovery, held: dict[int, str]) -> None:
    """Keep channels that no layer reads, or that no layer writes."""
    for vectors, reason in ((found.reads, "no layer reads it"), (found.writes, "no layer writes it")):
        met = np.zeros(found.channels, dtype=bool)
        for vector in vectors.values():
            met[vector[vector >= 0]] = True
        for channel in np.flatnonzero(~met).tolist():
            held.setdefault(channel, reason)


def _hold_balanced_streams(found: Discovery, alone: Mask, held: dict[int, str]) -> None:
    """Keep streams that are split into equal parts: readers that select on their own could not keep them equal."""
    for balance in found.balances:
        if balance.reader is None and not (balance.blocks == balance.blocks[:1]).all():
            for channel in np.unique(balance.blocks[balance.blocks >= 0]).tolist():
                if alone[channel]:
                    held.setdefault(channel, balance.reason)


def _named(drafts: list[Draft], found: Discovery) -> list[Draft]:
    """Name the drafts, in the order in which the network reads them.

    Drafts that turn out to be too narrow for a unit get a name too. Otherwise the names of the others would depend on
    widths, and the plans of two rounds would not compose.
    """
    turn = {name: i for i, name in enumerate(found.reads)}
    readers, writers = _first_met(found.reads, found.channels), _first_met(found.writes, found.channels)
    names = list(found.writes)

    def first_read(draft: Draft) -> tuple[int, int]:
        turn_of = turn[draft.reader] if draft.reader is not None else int(readers[draft.channels].min())
        return turn_of, int(draft.channels[0])

    taken: dict[str, int] = {}
    ordered = sorted(drafts, key=first_read)
    for draft in ordered:
        base = f"{draft.reader}:in" if draft.reader is not None else f"{names[writers[draft.channels].min()]}:out"
        taken[base] = taken.get(base, 0) + 1
        draft.name = base if taken[base] == 1 else f"{base}.{taken[base]}"
    return ordered


def _first_met(vectors: Mapping[str, Indices], channels: int) -> Indices:
    """[channels] the number of the first layer that has the channel on its axis."""
    first = np.full(channels, len(vectors), dtype=np.int64)
    for i, vector in reversed(list(enumerate(vectors.values()))):
        first[vector[vector >= 0]] = i
    return first


def _units(found: Discovery, drafts: list[Draft]) -> dict[str, Unit]:
    reads, writes = Places(found.reads, found.channels), Places(found.writes, found.channels)
    units: dict[str, Unit] = {}
    same: dict[bytes, tuple[Writer, ...]] = {}  # readers of one stream share its writers
    for draft in drafts:
        key = draft.channels.tobytes()
        if key not in same:
            same[key] = tuple(Writer(*part) for part in writes.of(draft.channels))
        readers = tuple(Reader(*part) for part in reads.of(draft.channels, draft.reader))
        width = len(draft.channels)
        units[draft.name] = Unit(draft.name, width, draft.granule, draft.kind, readers, same[key], draft.blocks)
    return units
