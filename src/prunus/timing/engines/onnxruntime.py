"""onnxruntime on the CPU."""

from __future__ import annotations

from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.onnx_export import PACKAGES, open_session


def _open(content: bytes, threads: int) -> OnnxProgram:
    session = open_session(content, threads)
    names = [given.name for given in session.get_inputs()]
    return OnnxProgram(names, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))


ONNXRUNTIME = Engine(
    name="onnxruntime",
    help="onnxruntime on the CPU, from an ONNX file",
    open_onnx=_open,
    requires=PACKAGES,
    package="onnxruntime",
)
