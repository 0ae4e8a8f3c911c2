"""Blocks that merge their branches into one convolution for inference, such as RepVGG's and MobileOne's.

They build the new layer from widths that they remember as numbers. After pruning, these numbers are those of the layers
inside the block, if running the merged network proves that they are.
"""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from prunus.graph.compare import NotRun, difference, error_text, in_mode
from prunus.graph.surgery import copy_sharing
from prunus.graph.traced import Example, named_modules

logger = logging.getLogger(__name__)

METHODS = ("reparameterize", "switch_to_deploy")
_WIDTHS = {  # attributes of layers, and how names of a block's attributes for the same number begin
    "in_channels": "in",
    "in_features": "in",
    "out_channels": "out",
    "out_features": "out",
    "num_features": "num",
    "groups": "groups",
}


def follow_widths(original: nn.Module, pruned: nn.Module, example: Example) -> None:
    """Update the widths that blocks with a method for merging remember, if the merged network then computes the same.

    Otherwise the numbers stay, and a warning says that the blocks cannot be merged any more.
    """
    blocks = [(name, block) for name, block in named_modules(pruned) if _merges(block)]
    changes = {name: _changes(original.get_submodule(name), block) for name, block in blocks}
    if not any(changes.values()):
        return
    before = {name: {key: vars(block)[key] for key in changes[name]} for name, block in blocks}
    for name, block in blocks:
        vars(block).update(changes[name])
    problem = _problem(pruned, example)
    if problem is None:
        return
    for name, block in blocks:
        vars(block).update(before[name])
    if _problem(original, example) is None:
        method = next(method for method in METHODS if hasattr(blocks[0][1], method))
        logger.warning("%s() no longer works after this cut: %s. Call it before pruning.", method, problem)


def _merges(module: nn.Module) -> bool:
    return any(callable(getattr(type(module), method, None)) for method in METHODS)


def _changes(original: nn.Module, pruned: nn.Module) -> dict[str, int]:
    """The numbers of a block that are widths of layers inside it, and what these are after the cut."""
    became: dict[tuple[str, int], set[int]] = {}
    smaller = dict(named_modules(pruned))
    for name, old in named_modules(original):
        new = smaller.get(name)
        for attribute, begins in _WIDTHS.items():
            width: Any = getattr(old, attribute, None)
            if old._parameters and not _merges(old) and type(width) is int:
                for begin in (begins, ""):
                    became.setdefault((begin, width), set()).add(getattr(new, attribute, width))
    changes = {}
    for name, value in vars(pruned).items():
        if type(value) is not int:
            continue
        found = became.get((name.split("_")[0], value)) or became.get(("", value), set())
        if len(found) == 1 and found != {value}:
            (changes[name],) = found
    return changes


def _problem(model: nn.Module, example: Example) -> str | None:
    """What goes wrong if all blocks of a copy are merged, in words; None if nothing does."""
    try:
        merged = copy_sharing(model)
        with in_mode(model, "eval"), in_mode(merged, "eval"):
            for _, block in named_modules(merged):
                method = next((method for method in METHODS if hasattr(type(block), method)), None)
                if method is not None:
                    getattr(block, method)()
            return difference(merged, model, example)
    except NotRun as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  whatever the model's own code raises
        return error_text(error)
