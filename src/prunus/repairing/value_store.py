"""Values of every chunk of images between two stops: in memory as far as they fit, the rest in a temporary file.

The file has no name, so nothing is left behind if the process is killed. Tensors that share memory share it again when
they are read back, because later calls may work in place. To save room, float32 can be stored as float16. `checkpoints`
chooses the stops at which values are kept at all.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

SHARE_OF_DISK = 0.5  # of the free space in the folder for temporary files
LARGEST = 6e4  # about the largest float16
SMALLEST = 1e-3  # numbers that are all below this lose digits in float16
DISK = 2e8  # bytes per second to or from a file
COPY = 4e9  # bytes per second in memory


@dataclass(frozen=True)
class _View:
    """A tensor as a view of one of the stored memory blocks."""

    block: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


# Memory that tensors share, as bytes, or as float16 in the place of float32; or its place in the file, length and type.
_Block = Tensor | tuple[int, int, torch.dtype]


@dataclass(frozen=True, eq=False)
class _Packed:
    """Values with their memory set apart."""

    leaves: list[Any]
    spec: TreeSpec
    device: torch.device
    blocks: Sequence[_Block]


class ValueStore:
    """The values of every chunk, in order.

    Args:
        capacity: Bytes to keep in memory.
        constant: Addresses of memory that is not copied (weights, buffers).
        half: Whether float32 is stored as float16.
        beside: Another store that shares the capacity, and is emptied while this one is filled.
    """

    def __init__(
        self, capacity: float, constant: Collection[int] = (), half: bool = False, beside: ValueStore | None = None
    ) -> None:
        self._capacity, self._constant, self._half = capacity, frozenset(constant), half
        self._beside = beside
        self._entries: list[Any] = []
        self._sizes: list[int] = []  # bytes of each entry in memory
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def in_memory(self) -> int:
        return sum(self._sizes)

    def add(self, values: Any) -> None:
        """Keep the values of the next chunk."""
        entry = _pack(values, self._constant, half=True) if self._half else values
        size = bytes_of(entry.blocks if isinstance(entry, _Packed) else values)
        if self.in_memory + size + (0 if self._beside is None else self._beside.in_memory) > self._capacity:
            packed = entry if isinstance(entry, _Packed) else _pack(values, self._constant)
            entry, size = replace(packed, blocks=[self._written(block) for block in packed.blocks]), 0
        self._entries.append(entry)
        self._sizes.append(size)

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
        self._entries, self._sizes, self._beside = [], [], None
        if self._file is not None:
            self._file.close()

    def _written(self, block: Any) -> _Block:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        place = self._file.seek(0, os.SEEK_END)
        self._file.write(block.cpu().numpy().data)
        return place, len(block), block.dtype

    def _unpacked(self, packed: _Packed) -> Any:
        blocks = []
        for block in packed.blocks:
            if isinstance(block, Tensor):
                data = block.clone() if block.dtype == torch.uint8 else block
            else:
                assert self._file is not None
                place, length, dtype = block
                data = torch.empty(length, dtype=dtype)
                self._file.seek(place)
                self._file.readinto(data.numpy().data)  # type: ignore[attr-defined]
                data = data.to(packed.device)
            blocks.append(data.float() if data.dtype == torch.float16 else data)
        leaves = list(packed.leaves)
        for place, view in enumerate(leaves):
            if isinstance(view, _View):
                empty = torch.empty(0, dtype=view.dtype, device=blocks[view.block].device)
                memory = blocks[view.block].untyped_storage()
                leaves[place] = empty.set_(memory, view.offset, view.shape, view.stride)
        return tree_unflatten(leaves, packed.spec)


def bytes_of(values: Any, without: Collection[int] = ()) -> int:
    """Memory of all tensors in `values`, each block once, without the blocks at some addresses."""
    blocks = [x.untyped_storage() for x in tree_leaves(values) if isinstance(x, Tensor)]
    return sum({b.data_ptr(): b.nbytes() for b in blocks if b.data_ptr() not in without}.values())


def free_disk() -> float:
    """Bytes that temporary files may take."""
    return SHARE_OF_DISK * shutil.disk_usage(tempfile.gettempdir()).free


def _pack(values: Any, constant: frozenset[int], half: bool = False) -> _Packed:
    leaves, spec = tree_flatten(values)
    blocks: list[Tensor] = []
    types: list[set[torch.dtype]] = []  # of the tensors in each block
    numbers: dict[int, int] = {}  # address -> number of the block
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.untyped_storage().data_ptr() in constant:
            continue
        memory = leaf.untyped_storage()
        number = numbers.setdefault(memory.data_ptr(), len(blocks))
        if number == len(blocks):
            blocks.append(torch.empty(0, dtype=torch.uint8, device=leaf.device).set_(memory))
            types.append(set())
        types[number].add(leaf.dtype)
        leaves[place] = _View(number, leaf.dtype, leaf.shape, leaf.stride(), int(leaf.storage_offset()))
    device = blocks[0].device if blocks else torch.device("cpu")
    for number, kinds in enumerate(types if half else ()):
        if kinds == {torch.float32} and len(blocks[number]):
            data = blocks[number].view(torch.float32)
            least, most = (float(value) for value in data.aminmax())  # comparisons with NaN are false
            if least > -LARGEST and most < LARGEST and not 0 < max(most, -least) < SMALLEST:
                blocks[number] = data.half()
    return _Packed(leaves, spec, device, blocks)


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
    on_disk = [max(0.0, stops.bytes_at(k) - capacity) for k in range(count)]

    def seconds_between(start: int, end: int) -> float:
        """Time to reach the stops start + 1, ..., end, each from the values kept at `start` (-1: from the images)."""
        begin, kept, read = 0.0, 0, 0.0
        again = end - start - 1  # visits after the first one start from a copy
        if start >= 0:
            begin, kept = stops.seconds[start], stops.images[start]
            copied = again * (stops.bytes_at(start) - on_disk[start]) / COPY
            read = (again + 1) * on_disk[start] / DISK + copied
        return read + sum(stops.images[k] * stops.seconds[k] - kept * begin for k in range(start + 1, end + 1))

    best, last = [0.0] + [math.inf] * count, [0] * (count + 1)  # way k + 1 ends with values kept at stop k; 0: images
    for k in range(count):
        writing = 0.0 if k == count - 1 else math.inf if on_disk[k] > disk else on_disk[k] / DISK
        for i in range(k + 1):
            cost = best[i] + seconds_between(i - 1, k) + writing
            if cost < best[k + 1]:
                best[k + 1], last[k + 1] = cost, i
    kept = [False] * count
    way = last[count]
    while way:
        kept[way - 1] = True
        way = last[way]
    return kept
