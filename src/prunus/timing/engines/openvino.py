"""OpenVINO on the CPU, from an ONNX file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from prunus.errors import ModelError
from prunus.timing.engines import Engine, PreparedModel
from prunus.timing.onnx_export import PACKAGES, export_onnx


def _make(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(model, example, path)
        compiled = compile_model(path.read_bytes(), threads)
    request = compiled.create_infer_request()
    names = [given.get_any_name() for given in compiled.inputs]
    return PreparedModel(partial(_run, request, names), torch.device("cpu"))


def _run(request: Any, names: list[str], batch: Any) -> list[Any]:
    """The outputs for a batch, in the order of the network's outputs. OpenVINO writes over them in the next call."""
    tensors = [t for t in tree_flatten(batch)[0] if isinstance(t, Tensor)]
    if isinstance(batch, dict) and len(names) > 1:
        tensors = [batch[name] for name in names]
    given = {place: np.ascontiguousarray(t.cpu().numpy()) for place, t in enumerate(tensors)}
    return list(request.infer(given, share_inputs=True, share_outputs=True).values())


def compile_model(model: bytes, threads: int) -> Any:
    """An ONNX model that OpenVINO has compiled for the CPU, in 32-bit numbers as in PyTorch."""
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    core = _core()
    try:
        return core.compile_model(core.read_model(model), "CPU", settings)
    except RuntimeError as error:
        reason = next((line for line in reversed(str(error).strip().splitlines()) if line.strip()), "")
        raise ModelError(f"OpenVINO cannot run the network: {reason.strip()}") from error


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _open(model: bytes, threads: int) -> Callable[[Any], Any]:
    request = compile_model(model, threads).create_infer_request()
    return lambda images: request.infer({0: images}, share_inputs=True, share_outputs=True)


OPENVINO = Engine(
    name="openvino",
    help="OpenVINO on the CPU, from an ONNX file",
    make=_make,
    requires={**PACKAGES, "openvino": "openvino"},
    package="openvino",
    open_onnx=_open,
)
