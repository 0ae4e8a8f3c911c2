"""ExecuTorch with its XNNPACK backend, which runs float networks on the CPUs of phones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunus.errors import ModelError
from prunus.graph.selection import with_convolutions
from prunus.graph.traced import as_call
from prunus.timing.engines import Engine, one_for_each_shape
from prunus.timing.engines._native import attempt
from prunus.timing.onnx_export import export_program
from prunus.util.batches import to_device


def lowered(model: nn.Module, example: Any) -> bytes:
    """The content of a .pte file: the network for batches of the example's size, given to XNNPACK as far as it can."""
    model = with_convolutions(model, example)
    with attempt(f"ExecuTorch cannot express {type(model).__name__}"):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = export_program(model, to_device(example, torch.device("cpu")), dynamic_batch=False)
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        return bytes(edge.to_executorch().buffer)


def opened(content: bytes, threads: int) -> Callable[[Any], list[Any]]:
    """A function of the batch, which runs the content of a .pte file."""
    with attempt("ExecuTorch cannot load the network"):  # such as a file of another version
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        portable_lib._unsafe_reset_threadpool(threads)
        program = Runtime.get().load_program(content)
        method = program.load_method("forward")
    if method is None:
        raise ModelError("ExecuTorch cannot load the network: it has no method called forward")

    def run(batch: Any, alive: Any = (program, content)) -> list[Any]:  # a method does not keep what it reads alive
        args, kwargs = as_call(batch)
        outputs = method.execute([*tree_leaves(args), *tree_leaves(kwargs)])
        # The runtime writes over its outputs in the next call.
        return [value.clone() if isinstance(value, Tensor) else value for value in outputs]

    return run


EXECUTORCH = Engine(
    name="executorch",
    help="ExecuTorch with XNNPACK, on the CPU",
    make=lambda model, example, threads: one_for_each_shape(lambda batch: opened(lowered(model, batch), threads)),
    requires={"executorch": "executorch"},
    package="executorch",
    layers_in="onnxruntime",  # lowering a layer takes a second
    on_request=True,
    selection="convolution",
)
