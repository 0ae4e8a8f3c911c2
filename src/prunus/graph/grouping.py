"""From channels to units: channels with the same writers and readers form one unit.

Each reader of a stream is a unit of its own, unless streams are coupled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prunus.graph.discover import ChannelAnalysis, components
from prunus.graph.labels import Balance
from prunus.graph.units import Indices, Kind, Mask, Reader, Streams, Unit, Writer

# Drafts of units: channels that no reader or writer tells apart, and the blocks in which they can be removed.


@dataclass
class Draft:
    """A unit in the making."""

    channels: Indices  # channel numbers, ascending
    reader: str | None  # the reader that selects these channels on its own; None: all readers drop them together
    kind: Kind
    blocks: Indices  # [channels] the block that each channel belongs to
    name: str = ""

    @property
    def granule(self) -> int:
        """The number of blocks."""
        return int(self.blocks.max(initial=0)) + 1


@dataclass(frozen=True)
class Axes:
    """For each layer the distinct channels on its axis in ascending order, and how often each of them occurs."""

    reads: dict[str, tuple[Indices, Indices]]
    writes: dict[str, tuple[Indices, Indices]]

    @classmethod
    def of(cls, found: ChannelAnalysis) -> Axes:
        """The axes of all layers of a network."""
        reads, writes = (
            {name: _distinct(vector) for name, vector in vectors.items()} for vectors in (found.reads, found.writes)
        )
        return cls(reads, writes)


def _distinct(vector: Indices) -> tuple[Indices, Indices]:
    met = vector if vector.min(initial=0) >= 0 else vector[vector >= 0]
    if (met[1:] > met[:-1]).all():
        return met, np.ones(len(met), np.int64)
    return np.unique(met, return_counts=True)


def draft_together(found: ChannelAnalysis, axes: Axes, alone: Mask, held: dict[int, str]) -> list[Draft]:
    """Split the set of all channels by each reader and writer: channels that are never told apart form one draft."""
    group = np.zeros(found.channels, dtype=np.int64)
    fresh = 1
    for layers in (axes.writes, axes.reads):
        for met, times in layers.values():
            key = group[met] * (int(times.max(initial=0)) + 1) + times
            if (key == key[:1]).all():  # the usual case: no channels are told apart
                group[met] = fresh
                fresh += 1
            else:
                _, part = np.unique(key, return_inverse=True)
                group[met] = fresh + part
                fresh += int(part.max()) + 1
    free = np.flatnonzero(~alone & ~_mask(held, found.channels))
    drafts = []
    order = free[np.argsort(group[free], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(group[order]) != 0]) if len(order) else np.zeros(0, np.int64)
    for channels in np.split(order, starts[1:]) if len(order) else []:
        kind: Kind = "stream" if found.stream[channels].any() else "private"
        drafts.append(Draft(np.sort(channels), None, kind, np.zeros(len(channels), np.int64)))
    return drafts


def _mask(held: dict[int, str], channels: int) -> Mask:
    mask = np.zeros(channels, dtype=bool)
    mask[np.fromiter(held, dtype=np.int64, count=len(held))] = True
    return mask


def draft_alone(found: ChannelAnalysis, axes: Axes, alone: Mask) -> list[Draft]:
    """One draft for each reader of each stream. Channels that one layer writes belong to the same stream."""
    if not alone.any():
        return []
    empty = np.zeros(0, dtype=np.int64)
    written = [met[alone[met]] for met, _ in axes.writes.values()]
    a = np.concatenate([empty, *(mine[:-1] for mine in written)])
    b = np.concatenate([empty, *(mine[1:] for mine in written)])
    stream_of, _ = components(found.channels, a, b)
    drafts = []
    for name, (met, counts) in axes.reads.items():
        if name in found.unable_to_select:
            continue
        mine, times = met[alone[met]], counts[alone[met]]
        # Only channels that arrive equally often, so that the positions of a reader form a rectangle.
        key = stream_of[mine] * (int(times.max(initial=0)) + 1) + times
        parts = [mine] if (key == key[:1]).all() else [mine[key == k] for k in np.unique(key)]
        drafts += [Draft(part, name, "stream", np.zeros(len(part), np.int64)) for part in parts if len(part)]
    return drafts


def merge_across(drafts: list[Draft], balances: tuple[Balance, ...], channels: int) -> list[Draft]:
    """Merge drafts that are parts of one tensor, read by different layers, which must keep equal widths."""
    owner = np.full(channels, -1, dtype=np.int64)
    for i, draft in enumerate(drafts):
        owner[draft.channels] = i
    links: list[tuple[int, int]] = []
    for balance in balances:
        inside = balance.blocks[balance.blocks >= 0]
        uneven = [i for i in np.unique(owner[inside]) if i >= 0 and not _even(drafts[i].channels, balance)]
        links += [(uneven[0], i) for i in uneven[1:]]
    if not links:
        return drafts
    a, b = np.asarray(links, dtype=np.int64).T
    group_of, count = components(len(drafts), a, b)
    groups: list[list[Draft]] = [[] for _ in range(count)]
    for draft, group in zip(drafts, group_of, strict=True):
        groups[group].append(draft)
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _merged(drafts: list[Draft]) -> Draft:
    channels = np.sort(np.concatenate([draft.channels for draft in drafts]))
    kind: Kind = "stream" if any(draft.kind == "stream" for draft in drafts) else "private"
    return Draft(channels, None, kind, np.zeros(len(channels), np.int64))


def _counts(channels: Indices, balance: Balance) -> Indices:
    """[channels, blocks] how often each channel occurs in each block; `channels` are ascending."""
    blocks = len(balance.blocks)
    flat = balance.blocks.reshape(-1)
    block = np.repeat(np.arange(blocks), balance.blocks.shape[1])
    place = np.minimum(np.searchsorted(channels, flat), len(channels) - 1)
    hit = channels[place] == flat
    return np.bincount(place[hit] * blocks + block[hit], minlength=len(channels) * blocks).reshape(-1, blocks)


def _even(channels: Indices, balance: Balance) -> bool:
    totals = _counts(channels, balance).sum(axis=0)
    return bool((totals == totals[0]).all())


def balances_of(drafts: list[Draft], found: ChannelAnalysis) -> list[list[Balance]]:
    """The balances that bind each draft. A reader that selects on its own is bound only by its own groups."""
    owner = np.full(found.channels, -1, dtype=np.int64)
    by_reader: dict[str, list[int]] = {}
    for i, draft in enumerate(drafts):
        if draft.reader is None:
            owner[draft.channels] = i
        else:
            by_reader.setdefault(draft.reader, []).append(i)
    concerning: list[list[Balance]] = [[] for _ in drafts]
    for balance in found.balances:
        bound = set(owner[balance.blocks[balance.blocks >= 0]].tolist()) - {-1}
        for i in bound.union(by_reader.get(balance.reader or "", ())):
            concerning[i].append(balance)
    return concerning


def set_blocks(draft: Draft, balances: list[Balance]) -> str | None:
    """Set the block of every channel. Returns a reason in words if the balances contradict each other."""
    for balance in balances:
        counts = _counts(draft.channels, balance)
        if not counts.any() or (counts == counts[:, :1]).all():
            continue
        blocks = counts.argmax(axis=1)
        one_each = ((counts > 0).sum(axis=1) == 1).all() and (counts.max(axis=1) == counts.max()).all()
        if not one_each or len(set(np.bincount(blocks, minlength=counts.shape[1]))) != 1:
            return f"{balance.reason}, which its channels do not fill evenly"
        finer = _refinement(draft.blocks, blocks)
        if finer is None:
            return f"{balance.reason}, which contradicts another grouping of the same channels"
        draft.blocks = finer
    return None


def _refinement(a: Indices, b: Indices) -> Indices | None:
    """The common refinement of two even partitions, if it is even too. Equal parts of it are equal parts of both."""
    _, joint, counts = np.unique(a * (int(b.max()) + 1) + b, return_inverse=True, return_counts=True)
    return joint if len(set(counts.tolist())) == 1 else None


# Where channels stand on the axes of layers: the readers and writers of each unit.


class Places:
    """The positions of each channel on the axes of layers."""

    def __init__(self, vectors: Mapping[str, Indices], channels: int) -> None:
        self.vectors, self.names = vectors, list(vectors)
        empty = np.zeros(0, dtype=np.int64)
        layer = np.repeat(np.arange(len(vectors)), [len(v) for v in vectors.values()])
        position = np.concatenate([empty, *(np.arange(len(v)) for v in vectors.values())])
        channel = np.concatenate([empty, *vectors.values()])
        order = np.argsort(channel, kind="stable")[int((channel < 0).sum()) :]  # by channel, then layer and position
        self.layer, self.position = layer[order], position[order]
        count = np.bincount(channel[order], minlength=channels)
        self.end = np.cumsum(count)
        self.start = self.end - count

    def of(self, channels: Indices, only: str | None = None) -> list[tuple[str, Indices, Indices]]:
        """(layer, which of `channels` it has [n], positions [n, m]), for each layer and number m of occurrences."""
        if only is not None:
            return self._parts(only, *_found_in(self.vectors[only], channels), len(channels))
        lengths = self.end[channels] - self.start[channels]
        if (lengths == lengths[:1]).all():
            rows = self.start[channels, None] + np.arange(lengths[0])
            layers = self.layer[rows]
            if (layers == layers[0]).all():  # the usual case: all channels occur equally often in the same layers
                numbers = np.flatnonzero(np.bincount(layers[0]))
                here, positions = np.arange(len(channels)), self.position[rows]
                return [(self.names[number], here, positions[:, layers[0] == number]) for number in numbers]
        rows = np.arange(lengths.sum()) + np.repeat(self.start[channels] - np.cumsum(lengths) + lengths, lengths)
        mine = np.repeat(np.arange(len(channels)), lengths)
        layer, position = self.layer[rows], self.position[rows]
        parts = []
        for number in np.flatnonzero(np.bincount(layer)):
            inside = layer == number
            parts += self._parts(self.names[number], mine[inside], position[inside], len(channels))
        return parts

    @staticmethod
    def _parts(name: str, mine: Indices, at: Indices, count: int) -> list[tuple[str, Indices, Indices]]:
        times = np.bincount(mine, minlength=count)
        here = np.flatnonzero(times)
        times = times[here]
        if times.min() == times.max():
            return [(name, here, at.reshape(len(here), -1))]
        repeated = np.repeat(times, times)
        return [(name, here[times == m], at[repeated == m].reshape(-1, m)) for m in np.unique(times).tolist()]


def _found_in(vector: Indices, channels: Indices) -> tuple[Indices, Indices]:
    """All occurrences of `channels` (ascending) in `vector`: which channel, and at which position; by channel."""
    place = np.minimum(np.searchsorted(channels, vector), len(channels) - 1)
    at = np.flatnonzero(channels[place] == vector)
    mine = place[at]
    order = np.argsort(mine, kind="stable")
    return mine[order], at[order]


@dataclass(frozen=True)
class Grouped:
    """The units of a network."""

    units: dict[str, Unit]
    channels: dict[str, Indices]  # unit -> its channel numbers
    held: dict[int, str]  # channel that its writers must keep -> reason
    selecting: dict[str, str]  # unit of a stream -> its reader, which selects its own channels


def make_units(found: ChannelAnalysis, streams: Streams) -> Grouped:
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


def _hold_unread(found: ChannelAnalysis, held: dict[int, str]) -> None:
    """Keep channels that no layer reads, or that no layer writes."""
    for vectors, reason in ((found.reads, "no layer reads it"), (found.writes, "no layer writes it")):
        met = np.zeros(found.channels, dtype=bool)
        for vector in vectors.values():
            met[vector[vector >= 0]] = True
        for channel in np.flatnonzero(~met).tolist():
            held.setdefault(channel, reason)


def _hold_balanced_streams(found: ChannelAnalysis, alone: Mask, held: dict[int, str]) -> None:
    """Keep streams that are split into equal parts: readers that select on their own could not keep them equal."""
    for balance in found.balances:
        if balance.reader is None and not (balance.blocks == balance.blocks[:1]).all():
            for channel in np.unique(balance.blocks[balance.blocks >= 0]).tolist():
                if alone[channel]:
                    held.setdefault(channel, balance.reason)


def _named(drafts: list[Draft], found: ChannelAnalysis) -> list[Draft]:
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


def _units(found: ChannelAnalysis, drafts: list[Draft]) -> dict[str, Unit]:
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
