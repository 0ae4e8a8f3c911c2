"""Checks of arguments that several functions share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur.errors import TraceError

# Classes that wrap a network -> the attribute that holds it.
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


def check_network(model: Any) -> None:
    """TraceError unless `model` is a network that can be followed."""
    if isinstance(model, type):
        raise TraceError(
            f"expected a network, got the class {model.__name__}; pass an instance, as in {model.__name__}()"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError("TorchScript modules cannot be pruned; pass the nn.Module that the script was made from")
    unpacked = isinstance(model, torch.fx.GraphModule) and "eval" in vars(model)  # ExportedProgram.module()
    if unpacked or isinstance(model, torch.export.ExportedProgram):
        raise TraceError("exported programs cannot be pruned; pass the nn.Module that the program was exported from")
    if not isinstance(model, nn.Module):
        raise TraceError(f"expected a torch.nn.Module, got {type(model).__name__}; check the order of the arguments")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise TraceError("the network is on the meta device, so it has no weights; load them first")
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS:
            inner = _WRAPPERS[kind.__name__]
            raise TraceError(
                f"the network is wrapped in {kind.__name__}; trace model.{inner}, and wrap the pruned network again"
            )


def check_graph(graph: Any) -> None:
    """TraceError unless `graph` is what `trace` returns."""
    if not hasattr(graph, "units"):
        raise TraceError(
            f"expected the graph that secateur.trace(model, example) returns, got {type(graph).__name__}; check the "
            "order of the arguments"
        )


def check_example(example: Any) -> None:
    """TraceError if an input of the example has no elements."""
    for tensor in tree_leaves(example):
        if isinstance(tensor, Tensor) and tensor.numel() == 0:
            raise TraceError(
                f"the example is empty: its shape is {list(tensor.shape)}. Pass at least one image, as in "
                "torch.zeros(1, 3, 224, 224)"
            )
