"""Repair methods by name. To add one, add a file to this folder (see `prunus.util.registry`).

Importing this package imports no method and not torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prunus.errors import RunError
from prunus.util.registry import Entry, Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from prunus.score.reader_inputs import LayerInputs

    Change = tuple[Tensor, Tensor]  # a parameter or buffer, and its new value
    ReaderChanges = Callable[[LayerInputs, Any, Tensor], list[Change]]


@dataclass(frozen=True, kw_only=True)
class Repair(Entry):
    """A way to recover accuracy after a cut without training.

    run: `run(graph, plan, images, *, seed, progress, **options)` returns a new model, pruned and repaired.
    needs_images: whether `images` may not be None.
    tells_errors: whether `run` takes on_layer, a function that is called with a layer's name and its error before and
        after its repair.
    reader_changes: repairs one reader of a single cut unit (see `prunus.repair.unit_repair`). It takes the inputs
        that the reader has seen, the batch norm after it (or None) and the columns of its inputs that are kept.
    """

    run: Callable[..., nn.Module]
    needs_images: bool = True
    tells_errors: bool = False
    reader_changes: ReaderChanges | None = None


REPAIRS: Registry[Repair] = Registry("repair", "prunus.repair.methods", RunError)
