"""From channels to units: channels with the same writers and readers are one unit; a stream's readers decide alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secateur.channels.discovery import Discovery, components
from secateur.channels.label_record import Balance
from secateur.channels.units import Indices, Kind, Reader, Unit, Writer


@dataclass
class Draft:
    """A unit in the making: channel numbers, and the reader that decides alone (None: all readers together)."""

    channels: Indices
    reader: str | None
    kind: Kind
    blocks: Indices
    name: str = ""


def make_units(found: Discovery, streams: str) -> tuple[dict[str, Unit], dict[str, Indices], dict[int, str]]:
    """The units, the channel numbers of each, and for every channel that must stay with its writers the reason."""
    held = dict(found.held)
    alone = found.stream if streams == "select" else np.zeros(found.channels, dtype=bool)
    _hold_unread(found, held)
    _hold_balanced_streams(found, alone, held)
    together = _draft_together(found, alone, held)
    together = _merge_across(together, found.balances, found.channels)
    drafts = [*together, *_draft_alone(found, alone)]
    drafts = _named(drafts, found)
    kept = []
    for draft, balances in zip(drafts, _concerning(drafts, found), strict=True):
        reason = _set_blocks(draft, balances)
        if reason is None and len(draft.channels) // (int(draft.blocks.max(initial=0)) + 1) < 2:
            reason = f"its {len(draft.channels)} channels only go all together"
        if reason is None:
            kept.append(draft)
        elif draft.reader is None:
            held |= {int(c): reason for c in draft.channels if int(c) not in held}
    units, numbers = _finish(found, kept)
    return units, numbers, held


def _hold_unread(found: Discovery, held: dict[int, str]) -> None:
    """Channels that no layer reads, or that no layer writes, are nobody's to remove."""
    for vectors, reason in ((found.reads, "no layer reads it"), (found.writes, "no layer writes it")):
        met = np.zeros(found.channels, dtype=bool)
        for vector in vectors.values():
            met[vector[vector >= 0]] = True
        for channel in np.flatnonzero(~met):
            held.setdefault(int(channel), reason)


def _hold_balanced_streams(found: Discovery, alone: npt.NDArray[np.bool_], held: dict[int, str]) -> None:
    """Where readers decide alone, which channels die is nobody's decision: equal parts could not be kept equal."""
    for balance in found.balances:
        if balance.reader is None:
            for channel in np.unique(balance.blocks[balance.blocks >= 0]):
                if alone[channel]:
                    held.setdefault(int(channel), balance.reason)


def _draft_together(found: Discovery, alone: npt.NDArray[np.bool_], held: dict[int, str]) -> list[Draft]:
    """Refine the set of all channels by each reader and writer: what is never told apart is one unit."""
    group = np.zeros(found.channels, dtype=np.int64)
    fresh = 1
    for vectors in (found.writes, found.reads):
        for vector in vectors.values():
            met, times = _distinct(vector)
            key = group[met] * (len(vector) + 1) + times
            if (key == key[:1]).all():  # the usual case: nothing is told apart
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


def _distinct(vector: Indices) -> tuple[Indices, Indices]:
    """The channels of a layer's axis in ascending order, and the number of times that each stands there."""
    met = vector if vector.min(initial=0) >= 0 else vector[vector >= 0]
    if (met[1:] > met[:-1]).all():
        return met, np.ones(len(met), np.int64)
    return np.unique(met, return_counts=True)


def _mask(held: dict[int, str], channels: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(channels, dtype=bool)
    mask[np.fromiter(held, dtype=np.int64, count=len(held))] = True
    return mask


def _draft_alone(found: Discovery, alone: npt.NDArray[np.bool_]) -> list[Draft]:
    """One draft per reader and stream; channels that one layer writes belong to the same stream."""
    if not alone.any():
        return []
    empty = np.zeros(0, dtype=np.int64)
    written = [met[alone[met]] for met, _ in map(_distinct, found.writes.values())]
    a = np.concatenate([empty, *(mine[:-1] for mine in written)])
    b = np.concatenate([empty, *(mine[1:] for mine in written)])
    stream_of, _ = components(found.channels, a, b)
    drafts = []
    for name, vector in found.reads.items():
        met, times = _distinct(vector)
        mine, times = met[alone[met]], times[alone[met]]
        # Channels that arrive equally often, so that a reader's positions form a rectangle.
        key = stream_of[mine] * (len(vector) + 1) + times
        parts = [mine] if (key == key[:1]).all() else [mine[key == k] for k in np.unique(key)]
        drafts += [Draft(part, name, "stream", np.zeros(len(part), np.int64)) for part in parts if len(part)]
    return drafts


def _merge_across(drafts: list[Draft], balances: tuple[Balance, ...], channels: int) -> list[Draft]:
    """Halves of one tensor that different layers read, but that must stay equal, are one unit."""
    owner = np.full(channels, -1, dtype=np.int64)
    for i, draft in enumerate(drafts):
        owner[draft.channels] = i
    parent = list(range(len(drafts)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for balance in balances:
        inside = balance.blocks[balance.blocks >= 0]
        uneven = [i for i in np.unique(owner[inside]) if i >= 0 and not _even(drafts[i].channels, balance)]
        for i in uneven[1:]:
            parent[root(i)] = root(uneven[0])
    merged: dict[int, list[Draft]] = {}
    for i, draft in enumerate(drafts):
        merged.setdefault(root(i), []).append(draft)
    return [
        group[0]
        if len(group) == 1
        else Draft(
            np.sort(np.concatenate([d.channels for d in group])),
            None,
            "stream" if any(d.kind == "stream" for d in group) else "private",
            np.zeros(sum(len(d.channels) for d in group), np.int64),
        )
        for group in merged.values()
    ]


def _counts(channels: Indices, balance: Balance) -> Indices:
    """[channels, blocks] how often each channel stands in each block; `channels` are sorted."""
    blocks = len(balance.blocks)
    flat = balance.blocks.reshape(-1)
    block = np.repeat(np.arange(blocks), balance.blocks.shape[1])
    place = np.minimum(np.searchsorted(channels, flat), len(channels) - 1)
    hit = channels[place] == flat
    return np.bincount(place[hit] * blocks + block[hit], minlength=len(channels) * blocks).reshape(-1, blocks)


def _even(channels: Indices, balance: Balance) -> bool:
    totals = _counts(channels, balance).sum(axis=0)
    return bool((totals == totals[0]).all())


def _concerning(drafts: list[Draft], found: Discovery) -> list[list[Balance]]:
    """For each draft the balances that bind it: a reader that decides alone has only its own groups to mind."""
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


def _set_blocks(draft: Draft, balances: list[Balance]) -> str | None:
    """Give every channel its block; a reason in words where the demands on the unit contradict each other."""
    for balance in balances:
        counts = _counts(draft.channels, balance)
        if not counts.any() or (counts == counts[:, :1]).all():
            continue
        blocks = counts.argmax(axis=1)
        one_each = ((counts > 0).sum(axis=1) == 1).all() and (counts.max(axis=1) == counts.max()).all()
        if not one_each or len(set(np.bincount(blocks, minlength=counts.shape[1]))) != 1:
            return f"{balance.reason}, which its channels do not fill evenly"
        finer = _finer(draft.blocks, blocks)
        if finer is None:
            return f"{balance.reason}, which contradicts another grouping of the same channels"
        draft.blocks = finer
    return None


def _finer(a: Indices, b: Indices) -> Indices | None:
    """The common refinement of two even partitions, if it is even too: equal parts of it are equal parts of both."""
    _, joint, counts = np.unique(a * (int(b.max()) + 1) + b, return_inverse=True, return_counts=True)
    return joint if len(set(counts.tolist())) == 1 else None


# ------------------------------------------------------------------------------------------------ names and positions


def _named(drafts: list[Draft], found: Discovery) -> list[Draft]:
    """Drafts in the order in which the network reads them, with their names.

    Drafts that turn out to be too narrow for a unit have names too: those of the others must not depend on that, or
    the plans of two rounds would not compose.
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
    """[channels] number of the first layer that has the channel on its axis."""
    first = np.full(channels, len(vectors), dtype=np.int64)
    for i, vector in reversed(list(enumerate(vectors.values()))):
        first[vector[vector >= 0]] = i
    return first


def _finish(found: Discovery, drafts: list[Draft]) -> tuple[dict[str, Unit], dict[str, Indices]]:
    reads, writes = _Places(found.reads, found.channels), _Places(found.writes, found.channels)
    units: dict[str, Unit] = {}
    numbers: dict[str, Indices] = {}
    same: dict[bytes, tuple[Writer, ...]] = {}  # readers of one stream share its writers
    for draft in drafts:
        key = draft.channels.tobytes()
        if key not in same:
            same[key] = tuple(Writer(*part) for part in writes.of(draft.channels))
        readers = tuple(Reader(*part) for part in reads.of(draft.channels, draft.reader))
        granule = int(draft.blocks.max(initial=0)) + 1
        width = len(draft.channels)
        units[draft.name] = Unit(draft.name, width, granule, draft.kind, readers, same[key], draft.blocks)
        numbers[draft.name] = draft.channels
    return units, numbers


class _Places:
    """Where the axes of layers carry which channel."""

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
        """(layer, which of `channels` it has, their positions [n, m]), one for each layer and number of times m."""
        if only is not None:
            return self._parts(only, *_found_in(self.vectors[only], channels), len(channels))
        lengths = self.end[channels] - self.start[channels]
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
    """Where `channels` (ascending) stand in `vector`: which of them and at which position, by channel."""
    place = np.minimum(np.searchsorted(channels, vector), len(channels) - 1)
    at = np.flatnonzero(channels[place] == vector)
    mine = place[at]
    order = np.argsort(mine, kind="stable")
    return mine[order], at[order]
