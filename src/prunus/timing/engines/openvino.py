"""OpenVINO on the CPU, in 32-bit numbers and in 8-bit integers."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from prunus.errors import ModelError
from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.engines.onnxruntime import in_8_bits, quantise
from prunus.timing.onnx_export import PACKAGES


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _open(content: bytes, threads: int) -> OnnxProgram:
    """In 32-bit numbers, as in PyTorch. OpenVINO writes over the outputs in the next call."""
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    try:
        compiled = _core().compile_model(_core().read_model(content), "CPU", settings)
    except RuntimeError as error:
        reason = next((line for line in reversed(str(error).strip().splitlines()) if line.strip()), "")
        raise ModelError(f"OpenVINO cannot run the network: {reason.strip()}") from error
    request = compiled.create_infer_request()

    def run(arrays: list[Any]) -> list[Any]:
        return list(request.infer(dict(enumerate(arrays)), share_inputs=True, share_outputs=True).values())

    return OnnxProgram([given.get_any_name() for given in compiled.inputs], run)


def _crashes() -> bool:
    """OpenVINO needs AVX2, and does not look whether oneDNN may use it."""
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in ("SSE41", "AVX")


OPENVINO = Engine(
    name="openvino",
    help="OpenVINO on the CPU, from an ONNX file",
    open_onnx=_open,
    requires={**PACKAGES, "openvino": "openvino"},
    package="openvino",
    selection="convolution",  # a Gather takes it out of its fast layout
    crashes=_crashes,
)
OPENVINO_INT8 = Engine(
    name="openvino-int8",
    help="OpenVINO on the CPU in 8-bit integers",
    open_onnx=lambda content, threads: _open(in_8_bits(content), threads),
    quantise=quantise,  # OpenVINO's own tool, NNCF, gives the same accuracy and speed
    requires={**PACKAGES, "openvino": "openvino"},
    package="openvino",
    selection="convolution",
    crashes=_crashes,
    on_request=True,
)
