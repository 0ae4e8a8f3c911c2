"""Engines that run an ONNX file on the CPU: onnxruntime and OpenVINO."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.errors import ModelError
from prunus.timing.engines import Engine, PreparedModel
from prunus.timing.onnx_export import PACKAGES, export_onnx, inputs_of, open_session, run_session


def _exported(model: nn.Module, example: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(model, example, path)
        return path.read_bytes()


def _make_onnxruntime(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    session = open_session(_exported(model, example), threads)
    return PreparedModel(partial(run_session, session), torch.device("cpu"))


def _open_onnxruntime(model: bytes, threads: int) -> Callable[[Any], Any]:
    session = open_session(model, threads)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})


ONNXRUNTIME = Engine(
    name="onnxruntime",
    help="onnxruntime on the CPU, from an ONNX file",
    make=_make_onnxruntime,
    requires=PACKAGES,
    package="onnxruntime",
    open_onnx=_open_onnxruntime,
)


def _make_openvino(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    compiled = compile_for_openvino(_exported(model, example), threads)
    request = compiled.create_infer_request()
    names = [given.get_any_name() for given in compiled.inputs]

    def run(batch: Any) -> list[Any]:
        """In the order of the network's outputs. OpenVINO writes over them in the next call."""
        given = dict(enumerate(inputs_of(batch, names)))
        return list(request.infer(given, share_inputs=True, share_outputs=True).values())

    return PreparedModel(run, torch.device("cpu"))


def _open_openvino(model: bytes, threads: int) -> Callable[[Any], Any]:
    request = compile_for_openvino(model, threads).create_infer_request()
    return lambda images: request.infer({0: images}, share_inputs=True, share_outputs=True)


def compile_for_openvino(model: bytes, threads: int) -> Any:
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


OPENVINO = Engine(
    name="openvino",
    help="OpenVINO on the CPU, from an ONNX file",
    make=_make_openvino,
    requires={**PACKAGES, "openvino": "openvino"},
    package="openvino",
    open_onnx=_open_openvino,
)
