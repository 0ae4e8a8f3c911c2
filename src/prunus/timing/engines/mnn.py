"""MNN on the CPU."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prunus.errors import ModelError
from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.engines._native import native_output_dropped, python_child, run_child
from prunus.timing.onnx_export import PACKAGES

# The converter itself. `MNN.tools.mnnconvert` is not imported: it installs packages and sends reports over the network.
_CONVERT = "import sys, _tools; _tools.mnnconvert(['mnnconvert', *sys.argv[1:]])"


@cache
def _library() -> Any:
    with native_output_dropped():
        import MNN
        import MNN.expr
        import MNN.nn
    return MNN


def convert_onnx(source: Path, target: Path) -> None:
    """Write the network of an ONNX file as an .mnn file, in 32-bit numbers. ModelError if MNN cannot express it."""
    options = ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target), "--bizCode", "prunus"]
    output = run_child(python_child(_CONVERT, *options), "MNN cannot convert the network")
    if not target.is_file():  # the converter reports success in any case
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "it wrote no file")
        raise ModelError(f"MNN cannot convert the network: {last.strip()}")


def open_file(path: Path, threads: int) -> OnnxProgram:
    """A program of an .mnn file."""
    mnn = _library()
    with native_output_dropped():
        setting = {"backend": 0, "numThread": threads, "precision": 1, "power": 0}  # the CPU, high precision
        runtime = mnn.nn.create_runtime_manager((setting,))
        # Tensors are in the layout of the ONNX file, and shapes are found at each call.
        network = mnn.nn.load_module_from_file(str(path), [], [], runtime_manager=runtime)
    if network is None:
        raise ModelError("MNN cannot read the network that it converted")
    names = list(network.get_info()["inputNames"])

    kinds = {"float32": mnn.expr.float, "int32": mnn.expr.int, "int64": mnn.expr.int64, "uint8": mnn.expr.uint8}

    def run(arrays: list[Any]) -> list[Any]:
        for array in arrays:
            if array.dtype.name not in kinds:
                raise ModelError(f"MNN takes inputs of {', '.join(kinds)}, not {array.dtype.name}")
        given = [mnn.expr.const(x, list(x.shape), mnn.expr.NCHW, kinds[x.dtype.name]) for x in arrays]
        outputs = network.forward(given)
        if outputs is None or any(value.shape is None for value in outputs):
            raise ModelError("MNN cannot run the network on inputs of these shapes")
        own_layout = mnn.expr.NC4HW4
        plain = [mnn.expr.convert(v, mnn.expr.NCHW) if v.data_format == own_layout else v for v in outputs]
        return [np.array(value.read(), copy=True) for value in plain]

    return OnnxProgram(names, run)


def _open(content: bytes, threads: int) -> OnnxProgram:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "model.onnx", Path(folder) / "model.mnn"
        source.write_bytes(content)
        convert_onnx(source, target)
        return open_file(target, threads)


MNN = Engine(
    name="mnn",
    help="MNN on the CPU, from an ONNX file",
    open_onnx=_open,
    requires={**PACKAGES, "MNN": "mnn"},
    package="MNN",
    on_request=True,
)
