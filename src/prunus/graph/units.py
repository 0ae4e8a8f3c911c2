"""Units: channels that are scored and pruned together, and the layers that read and write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["private", "stream"]
Streams = Literal["select", "coupled"]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Keep = Mapping[str, Sequence[int]]  # unit -> channels to keep


@dataclass(frozen=True, eq=False)
class Reader:
    """A conv or linear layer that mixes the channels of a unit.

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

    def __repr__(self) -> str:
        """One line without the arrays: width, kind, and the layers by name."""
        written, read = (", ".join(layer.module for layer in layers) for layers in (self.writers, self.readers))
        return f"Unit({self.name}: {self.width} channels, {self.kind}, written by {written}, read by {read})"
