"""LiteRT, the former TensorFlow Lite, with its XNNPACK delegate. litert-torch converts networks for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn
from torch.utils._pytree import tree_leaves

from prunus.errors import ModelError
from prunus.graph.selection import with_convolutions
from prunus.graph.traced import as_call
from prunus.timing.engines import Engine, PreparedModel, one_for_each_shape
from prunus.timing.engines._native import attempt


def converted(model: nn.Module, example: Any) -> bytes:
    """The content of a .tflite file: the network in 32-bit numbers, for batches of the example's size."""
    args = positional(model, example)
    model = with_convolutions(model, example)
    with attempt(f"litert-torch cannot express {type(model).__name__}"), TemporaryDirectory() as folder:
        import litert_torch

        path = Path(folder) / "model.tflite"
        litert_torch.convert(model.eval(), args).export(str(path))
        return path.read_bytes()


def positional(model: nn.Module, batch: Any) -> tuple[Any, ...]:
    """A batch as positional arguments, by which the inputs of a .tflite file are known."""
    args, kwargs = as_call(batch)
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    if bound.kwargs:
        raise ModelError(f"LiteRT takes positional inputs, and {', '.join(bound.kwargs)} can only be given by name")
    return bound.args


def opened(content: bytes, threads: int) -> Callable[[tuple[Any, ...]], list[Any]]:
    """A function of the network's positional inputs, which runs the content of a .tflite file."""
    with attempt("LiteRT cannot load the network"):  # a broken file, or operations that it does not know
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_content=content, num_threads=threads)
        interpreter.allocate_tensors()
        details = interpreter.get_input_details()
    places = {int(re.findall(r"\d+", one["name"].partition(":")[0])[-1]): one["index"] for one in details}
    inputs = [places[place] for place in sorted(places)]  # they are called args_0, args_1, ...
    outputs = [made["index"] for made in interpreter.get_output_details()]

    def run(args: tuple[Any, ...]) -> list[Any]:
        for index, value in zip(inputs, tree_leaves(args), strict=True):
            interpreter.set_tensor(index, np.ascontiguousarray(value.cpu().numpy()))
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in outputs]

    return run


def _make(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    def open_for(batch: Any) -> Callable[[Any], list[Any]]:
        run = opened(converted(model, batch), threads)
        return lambda given: run(positional(model, given))

    return one_for_each_shape(open_for)


LITERT = Engine(
    name="litert",
    help="LiteRT (TensorFlow Lite) with XNNPACK, on the CPU",
    make=_make,
    requires={"ai_edge_litert": "litert", "litert_torch": "litert"},
    package="ai-edge-litert",
    layers_in="onnxruntime",  # converting a layer takes seconds
    on_request=True,
    selection="convolution",
)
