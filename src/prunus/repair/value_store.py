"""Values of every chunk of images between two passes: in memory as far as they fit, the rest in a temporary file.

The file has no name, so nothing is left behind if the process is killed. Tensors that share memory share it again when
they are read back, because later calls may work in place. To save room, float32 can be stored as float16.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

SHARE_OF_DISK = 0.5  # of the free space in the folder for temporary files
LARGEST = 6e4  # about the largest float16
SMALLEST = 1e-3  # numbers that are all below this lose digits in float16


@dataclass(frozen=True)
class _View:
    """A tensor as a view of one of the stored memory blocks."""

    block: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, eq=False)
class _Block:
    """Memory that tensors share. halved: float32 stored as float16."""

    data: Tensor | tuple[int, int]  # the bytes, or their place and number in the file
    halved: bool


@dataclass(frozen=True, eq=False)
class _Packed:
    """Values with their memory set apart."""

    leaves: list[Any]
    spec: TreeSpec
    device: torch.device
    blocks: list[_Block]


class ValueStore:
    """The values of every chunk, in order."""

    def __init__(
        self,
        capacity: float,
        constant: Collection[int] = (),
        half: bool = False,
        beside: ValueStore | None = None,
    ) -> None:
        """capacity: bytes to hold in memory. constant: addresses of memory that is not copied (weights, buffers).

        beside: another store that shares the capacity, and is emptied while this one is filled.
        """
        self._capacity, self._constant, self._half = capacity, frozenset(constant), half
        self._beside = beside
        self._entries: list[Any] = []
        self._sizes: list[int] = []  # bytes of each entry in memory
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, values: Any) -> None:
        """Keep the values of the next chunk."""
        kept = _pack(values, self._constant, half=True) if self._half else values
        size = sum(len(b.data) for b in kept.blocks) if isinstance(kept, _Packed) else bytes_of(values)
        if self.held + size + (0 if self._beside is None else self._beside.held) > self._capacity:
            kept, size = self._written(kept if isinstance(kept, _Packed) else _pack(values, self._constant)), 0
        self._entries.append(kept)
        self._sizes.append(size)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return sum(self._sizes)

    def read(self, chunk: int) -> Any:
        """The values of a chunk, which stay here. The caller must not overwrite them."""
        entry = self._entries[chunk]
        return self._unpacked(entry) if isinstance(entry, _Packed) else entry

    def copy(self, chunk: int) -> Any:
        """The same as values that the caller may overwrite."""
        entry = self._entries[chunk]
        return self._unpacked(entry if isinstance(entry, _Packed) else _pack(entry, self._constant))

    def take(self, chunk: int) -> Any:
        """The values of a chunk for the last time. The caller may overwrite them."""
        values = self.read(chunk)
        self._entries[chunk], self._sizes[chunk] = None, 0
        return values

    def close(self) -> None:
        """Forget everything."""
        self._entries, self._sizes, self._beside = [], [], None
        if self._file is not None:
            self._file.close()

    def _written(self, packed: _Packed) -> _Packed:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        blocks = []
        for block in packed.blocks:
            assert isinstance(block.data, Tensor)
            place = self._file.seek(0, os.SEEK_END), len(block.data)
            self._file.write(block.data.cpu().numpy().data)
            blocks.append(_Block(place, block.halved))
        return replace(packed, blocks=blocks)

    def _unpacked(self, packed: _Packed) -> Any:
        blocks = [self._bytes(block, packed.device) for block in packed.blocks]
        leaves = [_tensor(blocks, leaf) if isinstance(leaf, _View) else leaf for leaf in packed.leaves]
        return tree_unflatten(leaves, packed.spec)

    def _bytes(self, block: _Block, device: torch.device) -> Tensor:
        """A new copy of the bytes of a block."""
        if isinstance(block.data, Tensor):
            return block.data.view(torch.float16).float() if block.halved else block.data.clone()
        assert self._file is not None
        data = np.empty(block.data[1], dtype=np.uint8)
        self._file.seek(block.data[0])
        self._file.readinto(data.data)  # type: ignore[attr-defined]
        found = torch.from_numpy(data).to(device)
        return found.view(torch.float16).float() if block.halved else found


def bytes_of(values: Any) -> int:
    """Memory of all tensors in `values`, each block once."""
    tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor)]
    return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}.values())


def free_disk() -> float:
    """Bytes that temporary files may take."""
    return SHARE_OF_DISK * shutil.disk_usage(tempfile.gettempdir()).free


def _pack(values: Any, constant: frozenset[int], half: bool = False) -> _Packed:
    leaves, spec = tree_flatten(values)
    blocks: list[Tensor] = []
    types: list[set[torch.dtype]] = []  # of the tensors in each block
    known: dict[int, int] = {}
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.untyped_storage().data_ptr() in constant:
            continue
        memory = leaf.untyped_storage()
        number = known.setdefault(memory.data_ptr(), len(blocks))
        if number == len(blocks):
            blocks.append(torch.empty(0, dtype=torch.uint8, device=leaf.device).set_(memory))
            types.append(set())
        types[number].add(leaf.dtype)
        leaves[place] = _View(number, leaf.dtype, leaf.shape, leaf.stride(), int(leaf.storage_offset()))
    device = blocks[0].device if blocks else torch.device("cpu")
    return _Packed(
        leaves, spec, device, [_block(b, half and t == {torch.float32}) for b, t in zip(blocks, types, strict=True)]
    )


def _block(data: Tensor, half: bool) -> _Block:
    """These bytes; as float16 if that is asked for and they are neither too large nor too small for it."""
    if not half or not len(data):
        return _Block(data, False)
    numbers = data.view(torch.float32)
    least, most = numbers.aminmax()
    if not bool((least > -LARGEST) & (most < LARGEST)):  # too large, or not a number
        return _Block(data, False)
    if 0 < max(float(most), -float(least)) < SMALLEST:
        return _Block(data, False)
    return _Block(numbers.half().view(torch.uint8), True)


def _tensor(blocks: list[Tensor], view: _View) -> Tensor:
    block = blocks[view.block]
    empty = torch.empty(0, dtype=view.dtype, device=block.device)
    return empty.set_(block.untyped_storage(), view.offset, view.shape, view.stride)


# Where to keep values on the way through two networks: everywhere if memory allows, else where that saves most
# time.

DISK = 2e8  # bytes per second to or from a file
COPY = 4e9  # bytes per second in memory


@dataclass(frozen=True)
class Stops:
    """What is known about the stops: for one image, the seconds from the start to each stop and the bytes of its values
    there; and how many images each stop needs, never fewer than the one before."""

    seconds: Sequence[float]
    sizes: Sequence[float]
    images: Sequence[int]

    def bytes_at(self, stop: int) -> float:
        """Bytes of the values of all images that this stop needs."""
        return self.sizes[stop] * self.images[stop]


def checkpoints(stops: Stops, capacity: float, disk: float) -> list[bool]:
    """At which stops values are kept, so that all stops are reached in the least time. The last one never is.

    With values kept at stop i, those at k > i cost reading(i) + seconds(i to k) each time they are needed, and keeping
    them costs writing(k). The best way to each stop is found from the best ways to all stops before it.
    """
    count = len(stops.sizes)
    best, last = [0.0] + [math.inf] * count, [0] * (count + 1)  # way k + 1 ends with values kept at stop k; 0: images
    for k in range(count):
        on_disk = _on_disk(stops, k, capacity)
        writing = 0.0 if k == count - 1 else math.inf if on_disk > disk else on_disk / DISK
        for i in range(k + 1):
            cost = best[i] + _serving(stops, i - 1, k, capacity) + writing
            if cost < best[k + 1]:
                best[k + 1], last[k + 1] = cost, i
    kept = [False] * count
    way = last[count] if count else 0
    while way:
        kept[way - 1] = True
        way = last[way]
    return kept


def _serving(stops: Stops, start: int, end: int, capacity: float) -> float:
    """Time to reach the stops start + 1, ..., end, each from the values kept at `start` (-1: from the images)."""
    begin, kept, read = 0.0, 0, 0.0
    again = end - start - 1  # visits after the first one start from a copy
    if start >= 0:
        begin, kept = stops.seconds[start], stops.images[start]
        on_disk = _on_disk(stops, start, capacity)
        read = (again + 1) * on_disk / DISK + again * (stops.bytes_at(start) - on_disk) / COPY
    return read + sum(stops.images[k] * stops.seconds[k] - kept * begin for k in range(start + 1, end + 1))


def _on_disk(stops: Stops, stop: int, capacity: float) -> float:
    return max(0.0, stops.bytes_at(stop) - capacity)
