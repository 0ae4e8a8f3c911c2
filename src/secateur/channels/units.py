"""What is scored and pruned together: units, and who reads and writes their channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["private", "stream"]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reader:
    """A conv or linear layer that mixes the unit's channels.

    `inputs[i, j]` is the position on the layer's input-channel axis that carries channel `channels[i]` of the
    unit for the j-th time (flatten -> linear: one position per pixel; most often there is just one).
    """

    module: str
    channels: Indices  # [n] which of the unit's channels this layer reads; most often all of them
    inputs: Indices  # [n, m]


@dataclass(frozen=True, eq=False)
class Writer:
    """A conv or linear layer whose filters make the unit's channels: `outputs[i, j]` is one filter's index."""

    module: str
    channels: Indices  # [n]
    outputs: Indices  # [n, m]


@dataclass(frozen=True, eq=False)
class Unit:
    """Channels that have the same writers and the same readers.

    private: all readers drop a channel together, so the writers lose the filter.
    stream: the channels also go through an addition; with streams="select" each reader is a unit of its own.
    `blocks[i]` is the block channel i lies in; as many channels must be kept in each block as in any other
    (grouped convolutions, shuffles). `granule` is the number of blocks: channels go in multiples of it.
    """

    name: str
    width: int
    granule: int
    kind: Kind
    readers: tuple[Reader, ...]
    writers: tuple[Writer, ...]
    blocks: Indices  # [width]
