"""onnxruntime on the CPU, in 8-bit integers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.onnx_export import PACKAGES, open_session
from prunus.timing.quantise import quantise


class _RandomImage:
    """One random image for each input. Times do not depend on the ranges that are measured on it."""

    def __init__(self, inputs: list[Any]) -> None:
        draw = np.random.default_rng(0)
        sizes = {one.name: [size if isinstance(size, int) else 1 for size in one.shape] for one in inputs}
        images = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
        self._left: list[dict[str, Any]] = [images]

    def get_next(self) -> dict[str, Any] | None:
        """The image; None after it."""
        return self._left.pop() if self._left else None


def _open(content: bytes, threads: int) -> OnnxProgram:
    inputs = open_session(content, threads).get_inputs()
    names = [one.name for one in inputs]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(content)
        quantise(source, target, _RandomImage(inputs))
        session = open_session(target.read_bytes(), threads)
    return OnnxProgram(names, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))


ONNXRUNTIME_INT8 = Engine(
    name="onnxruntime-int8",
    help="onnxruntime on the CPU in 8-bit integers, for times; export --int8 has the accuracy",
    open_onnx=_open,
    requires=PACKAGES,
    package="onnxruntime",
    on_request=True,
)
