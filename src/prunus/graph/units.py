"""Units: channels that are scored and pruned together, and the layers that read and write them.

Channels with the same writers and readers form one unit. Each reader of a stream is a unit of its own, unless streams
are coupled. So is each reader of channels that cannot be removed evenly, as behind the shuffles of ShuffleNetV2: these
are all written, and each reader selects some of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

if TYPE_CHECKING:
    from prunus.graph.discover import ChannelAnalysis
    from prunus.graph.labels import Balance

Kind = Literal["private", "stream"]
Streams = Literal["select", "coupled"]
Norms = Literal["whole", "compensated"]
AttentionCut = Literal["heads", "dims"]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Keep = Mapping[str, Sequence[int]]  # unit -> channels to keep


@dataclass(frozen=True, eq=False)
class Reader:
    """A conv or linear layer that mixes the channels of a unit, or a norm over them.

    Attributes:
        module: The name of the layer.
        channels: Which of the unit's channels it reads [n], usually all.
        inputs: `inputs[i, j]` is the position on the layer's input-channel axis that carries channel `channels[i]` of
            the unit for the j-th time [n, m]. There is usually one; flatten -> linear gives one position per pixel.
    """

    module: str
    channels: Indices
    inputs: Indices

    def __repr__(self) -> str:
        return f"Reader({self.module}: {len(self.channels)} channels)"


@dataclass(frozen=True, eq=False)
class Writer:
    """A conv or linear layer whose filters produce the channels of a unit.

    Attributes:
        module: The name of the layer.
        channels: Which of the unit's channels it writes [n].
        outputs: `outputs[i, j]` is the index of a filter that writes channel `channels[i]` [n, m].
    """

    module: str
    channels: Indices
    outputs: Indices

    def __repr__(self) -> str:
        return f"Writer({self.module}: {len(self.channels)} channels)"


@dataclass(frozen=True, eq=False)
class Unit:
    """Channels that have the same writers and the same readers.

    Grouped convolutions and channel shuffles divide the channels into blocks, and the same number of channels must be
    kept in each block.

    Attributes:
        name: As in plans and scores.
        width: Number of channels.
        granule: Number of blocks: channels can only be removed in multiples of it.
        kind: "private": all readers drop a channel together, so the writers lose the filter. "stream": the channels
            also go through an addition. With streams="select" each reader is a unit of its own, also if the channels
            cannot be removed evenly.
        readers: The layers that read the channels.
        writers: The layers that write them.
        norms: The norms and means over channels that count dropped ones as zeros.
        blocks: `blocks[i]` is the block of channel i.
        can_vanish: It may keep no channel at all: the residual branch that it is in is then removed.
    """

    name: str
    width: int
    granule: int
    kind: Kind
    readers: tuple[Reader, ...]
    writers: tuple[Writer, ...]
    blocks: Indices
    can_vanish: bool = False
    norms: tuple[Reader, ...] = ()

    def __repr__(self) -> str:
        """One line without the arrays: width, kind, and the layers by name."""
        written, read = (", ".join(layer.module for layer in layers) for layers in (self.writers, self.readers))
        return f"Unit({self.name}: {self.width} channels, {self.kind}, written by {written}, read by {read})"


# -- from channels to units


@dataclass(frozen=True)
class Grouped:
    """The units of a network."""

    units: dict[str, Unit]
    channels: dict[str, Indices]  # unit -> its channel numbers
    frozen: dict[int, str]  # channel that its writers must keep -> reason
    selecting: dict[str, str]  # unit of a stream -> its reader, which selects its own channels


@dataclass
class _Draft:
    """A unit in the making: channels that no reader or writer tells apart, and the blocks in which they can go."""

    channels: Indices  # channel numbers, ascending
    reader: str | None  # the reader that selects these channels on its own; None: all readers drop them together
    kind: Kind
    blocks: Indices  # [channels] the block that each channel belongs to
    name: str = ""

    @property
    def granule(self) -> int:
        """The number of blocks."""
        return int(self.blocks.max(initial=0)) + 1


def make_units(analysis: ChannelAnalysis, streams: Streams) -> Grouped:
    """Group the channels of a network into units."""
    alone = analysis.stream if streams == "select" else np.zeros(analysis.channels, dtype=bool)
    frozen = _frozen_channels(analysis, alone)
    together = _merge_across(_draft_together(analysis, alone, frozen), analysis)
    if streams == "select":  # what cannot be removed evenly stays, and its readers select
        alone = alone | _uneven(together, analysis)
    drafts = _named([*together, *_draft_alone(analysis, alone)], analysis)
    kept = []
    for draft, balances in zip(drafts, _balances_of(drafts, analysis), strict=True):
        reason = _set_blocks(draft, balances)
        if reason is None and draft.reader is not None:
            reason = analysis.frozen_readers.get(draft.reader)
        if reason is None and len(draft.channels) // draft.granule < 2:
            reason = f"its {len(draft.channels)} channels can only be removed all together"
        if reason is None:
            kept.append(draft)
        elif draft.reader is None:
            frozen |= {int(c): reason for c in draft.channels if int(c) not in frozen}
    reads, writes = Places(analysis.reads, analysis.channels), Places(analysis.writes, analysis.channels)
    over = Places({name: analysis.passes[name] for name in analysis.record.norms}, analysis.channels)
    units: dict[str, Unit] = {}
    same: dict[bytes, tuple[Writer, ...]] = {}  # readers of one stream share its writers
    for draft in kept:
        key = draft.channels.tobytes()
        if key not in same:
            same[key] = tuple(Writer(*part) for part in writes.of(draft.channels))
        readers = tuple(Reader(*part) for part in reads.of(draft.channels, draft.reader))
        width = len(draft.channels)
        norms = tuple(Reader(*part) for part in over.of(draft.channels)) if over.names and not draft.reader else ()
        units[draft.name] = Unit(
            draft.name, width, draft.granule, draft.kind, readers, same[key], draft.blocks, norms=norms
        )
    channels = {draft.name: draft.channels for draft in kept}
    return Grouped(units, channels, frozen, {draft.name: draft.reader for draft in kept if draft.reader is not None})


def _frozen_channels(analysis: ChannelAnalysis, alone: Mask) -> dict[int, str]:
    """Channel that must be kept -> reason: those of the analysis, and what no plan could say."""
    frozen = dict(analysis.frozen)
    for vectors, reason in ((analysis.reads, "no layer reads it"), (analysis.writes, "no layer writes it")):
        met = np.zeros(analysis.channels, dtype=bool)
        for vector in vectors.values():
            met[vector[vector >= 0]] = True
        for channel in np.flatnonzero(~met).tolist():
            frozen.setdefault(channel, reason)
    whole = alone if analysis.find_rule.compensates else alone | analysis.stream
    for name, (_, reason) in analysis.record.norms.items():
        vector = analysis.passes[name]
        for channel in vector[(vector >= 0) & whole[np.maximum(vector, 0)]].tolist():
            frozen.setdefault(channel, reason)
    for balance in analysis.balances:
        # A stream that is split into equal parts: readers that select on their own could not keep them equal.
        if balance.reader is None and not (balance.blocks == balance.blocks[:1]).all():
            for channel in np.unique(balance.blocks[balance.blocks >= 0]).tolist():
                if alone[channel]:
                    frozen.setdefault(channel, balance.reason)
    return frozen


# -- drafts


def _distinct(vector: Indices) -> tuple[Indices, Indices]:
    """The distinct channels on the axis of a layer, ascending, and how often each of them occurs."""
    met = vector if vector.min(initial=0) >= 0 else vector[vector >= 0]
    if (met[1:] > met[:-1]).all():
        return met, np.ones(len(met), np.int64)
    return np.unique(met, return_counts=True)


def _draft_together(analysis: ChannelAnalysis, alone: Mask, frozen: dict[int, str]) -> list[_Draft]:
    """Split the set of all channels by each reader and writer: channels that are never told apart form one draft."""
    group = np.zeros(analysis.channels, dtype=np.int64)
    fresh = 1
    for vector in (*analysis.writes.values(), *analysis.reads.values()):
        met, times = _distinct(vector)
        key = group[met] * (int(times.max(initial=0)) + 1) + times
        if (key == key[:1]).all():  # the usual case: no channels are told apart
            group[met] = fresh
            fresh += 1
        else:
            _, part = np.unique(key, return_inverse=True)
            group[met] = fresh + part
            fresh += int(part.max()) + 1
    free = ~alone
    free[np.fromiter(frozen, dtype=np.int64, count=len(frozen))] = False
    order = np.flatnonzero(free)
    order = order[np.argsort(group[order], kind="stable")]
    drafts = []
    for channels in np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(order) else []:
        kind: Kind = "stream" if analysis.stream[channels].any() else "private"
        drafts.append(_Draft(np.sort(channels), None, kind, np.zeros(len(channels), np.int64)))
    return drafts


def _draft_alone(analysis: ChannelAnalysis, alone: Mask) -> list[_Draft]:
    """One draft for each reader of each stream. Channels that one layer writes, or that are not part of an addition but
    of one tensor that is split into equal parts, belong to the same stream."""
    if not alone.any():
        return []
    empty = np.zeros(0, dtype=np.int64)
    written = [met[alone[met]] for met, _ in map(_distinct, analysis.writes.values())]
    mixed = alone & ~analysis.stream
    if mixed.any():
        split = (_distinct(each.blocks.reshape(-1))[0] for each in analysis.balances if each.reader is None)
        written += [met[mixed[met]] for met in split]
    a = np.concatenate([empty, *(mine[:-1] for mine in written)])
    b = np.concatenate([empty, *(mine[1:] for mine in written)])
    stream_of, _ = components(analysis.channels, a, b)
    drafts = []
    for name, vector in analysis.reads.items():
        if name in analysis.unable_to_select:
            continue
        met, counts = _distinct(vector)
        mine, times = met[alone[met]], counts[alone[met]]
        # Only channels that arrive equally often, so that the positions of a reader form a rectangle.
        key = stream_of[mine] * (int(times.max(initial=0)) + 1) + times
        parts = [mine] if (key == key[:1]).all() else [mine[key == k] for k in np.unique(key)]
        drafts += [_Draft(part, name, "stream", np.zeros(len(part), np.int64)) for part in parts if len(part)]
    return drafts


def _merge_across(drafts: list[_Draft], analysis: ChannelAnalysis) -> list[_Draft]:
    """Merge drafts that are parts of one tensor, read by different layers, which must keep equal widths."""
    owner = np.full(analysis.channels, -1, dtype=np.int64)
    for i, draft in enumerate(drafts):
        owner[draft.channels] = i
    links: list[tuple[int, int]] = []
    for balance in analysis.balances:
        uneven = []
        for i in np.unique(owner[balance.blocks[balance.blocks >= 0]]):
            totals = _counts(drafts[i].channels, balance).sum(axis=0) if i >= 0 else None
            if totals is not None and not (totals == totals[0]).all():
                uneven.append(i)
        links += [(uneven[0], i) for i in uneven[1:]]
    if not links:
        return drafts
    a, b = np.asarray(links, dtype=np.int64).T
    group_of, count = components(len(drafts), a, b)
    groups: list[list[_Draft]] = [[] for _ in range(count)]
    for draft, group in zip(drafts, group_of, strict=True):
        groups[group].append(draft)
    merged = []
    for group in groups:
        channels = np.sort(np.concatenate([draft.channels for draft in group]))
        kind: Kind = "stream" if any(draft.kind == "stream" for draft in group) else "private"
        merged.append(_Draft(channels, None, kind, np.zeros(len(channels), np.int64)) if len(group) > 1 else group[0])
    return merged


def _named(drafts: list[_Draft], analysis: ChannelAnalysis) -> list[_Draft]:
    """Name the drafts, in the order in which the network reads them.

    Drafts that turn out to be too narrow for a unit get a name too. Otherwise the names of the others would depend on
    widths, and the plans of two rounds would not compose.
    """
    turn = {name: i for i, name in enumerate(analysis.reads)}
    readers, writers = (_first_met(each, analysis.channels) for each in (analysis.reads, analysis.writes))
    names = list(analysis.writes)

    def first_read(draft: _Draft) -> tuple[int, int]:
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


# -- blocks that must keep the same number of channels


def _counts(channels: Indices, balance: Balance) -> Indices:
    """[channels, blocks] how often each channel occurs in each block; `channels` are ascending."""
    blocks = len(balance.blocks)
    flat = balance.blocks.reshape(-1)
    block = np.repeat(np.arange(blocks), balance.blocks.shape[1])
    place = np.minimum(np.searchsorted(channels, flat), len(channels) - 1)
    hit = channels[place] == flat
    return np.bincount(place[hit] * blocks + block[hit], minlength=len(channels) * blocks).reshape(-1, blocks)


def _balances_of(drafts: list[_Draft], analysis: ChannelAnalysis) -> list[list[Balance]]:
    """The balances that bind each draft. A reader that selects on its own is bound only by its own groups."""
    owner = np.full(analysis.channels, -1, dtype=np.int64)
    by_reader: dict[str, list[int]] = {}
    for i, draft in enumerate(drafts):
        if draft.reader is None:
            owner[draft.channels] = i
        else:
            by_reader.setdefault(draft.reader, []).append(i)
    concerning: list[list[Balance]] = [[] for _ in drafts]
    for balance in analysis.balances:
        bound = set(owner[balance.blocks[balance.blocks >= 0]].tolist()) - {-1}
        for i in bound.union(by_reader.get(balance.reader or "", ())):
            concerning[i].append(balance)
    return concerning


def _uneven(drafts: list[_Draft], analysis: ChannelAnalysis) -> Mask:
    """[channels] whether a channel belongs to a draft whose balances contradict each other."""
    uneven = np.zeros(analysis.channels, dtype=bool)
    for draft, balances in zip(drafts, _balances_of(drafts, analysis), strict=True):
        uneven[draft.channels] = _set_blocks(replace(draft), balances) is not None
    return uneven


def _set_blocks(draft: _Draft, balances: list[Balance]) -> str | None:
    """Set the block of every channel. Returns a reason in words if the balances contradict each other."""
    for balance in balances:
        counts = _counts(draft.channels, balance)
        if not counts.any() or (counts == counts[:, :1]).all():
            continue
        blocks = counts.argmax(axis=1)
        one_each = ((counts > 0).sum(axis=1) == 1).all() and (counts.max(axis=1) == counts.max()).all()
        if not one_each or len(set(np.bincount(blocks, minlength=counts.shape[1]))) != 1:
            return f"{balance.reason}, which its channels do not fill evenly"
        # The common refinement of two even partitions, if it is even too: equal parts of it are equal parts of both.
        joint = draft.blocks * (int(blocks.max()) + 1) + blocks
        _, finer, sizes = np.unique(joint, return_inverse=True, return_counts=True)
        if len(set(sizes.tolist())) > 1:
            return f"{balance.reason}, which contradicts another grouping of the same channels"
        draft.blocks = finer
    return None


# -- readers and writers


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
        """(layer, which of `channels` it has [n], positions [n, m]), for each layer and number m of occurrences.

        Args:
            channels: channel numbers, ascending.
            only: a layer, if the others do not matter.
        """
        if only is not None:
            place = np.minimum(np.searchsorted(channels, self.vectors[only]), len(channels) - 1)
            at = np.flatnonzero(channels[place] == self.vectors[only])
            mine = place[at]
            order = np.argsort(mine, kind="stable")
            return self._parts(only, mine[order], at[order], len(channels))
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


def components(count: int, a: Indices, b: Indices) -> tuple[Indices, int]:
    """Number the connected components of `count` nodes with edges a[i] - b[i], in the order of their first node."""
    if count == 0:
        return np.zeros(1, dtype=np.int64), 0
    links = coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(count, count))
    number, of_node = connected_components(links, directed=False)
    _, first = np.unique(of_node, return_index=True)
    order = np.empty(number, dtype=np.int64)
    order[np.argsort(first)] = np.arange(number)
    return order[of_node], int(number)
