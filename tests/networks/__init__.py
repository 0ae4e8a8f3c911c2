"""Networks of other libraries by name, `timm:dla34`: one file a library, each with a table of what is in the zoo."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

Shape = tuple[int, ...]


class Network(NamedTuple):
    """How to build a network without trained weights, the shapes of one example of each of its inputs, and a type."""

    make: Callable[[], nn.Module]
    shapes: tuple[Shape, ...] = ((3, 64, 64),)
    dtype: torch.dtype = torch.float64  # float32 for code that makes tensors of that type itself
