"""onnxruntime on the CPU, in 32-bit numbers and in 8-bit integers (its static quantisation)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from prunus.errors import DataError, ModelError
from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.onnx_export import PACKAGES, open_session


class Reader(Protocol):
    """Images as onnxruntime's tool asks for them."""

    def get_next(self) -> dict[str, Any] | None:
        """The next image, by the name of the input; None after the last one."""


def quantise(source: Path, target: Path, reader: Reader) -> None:
    """Write an ONNX file in 8-bit integers, with ranges of activations measured on the reader's images.

    Weights have a scale for each output channel, and the file holds pairs of QuantizeLinear and DequantizeLinear.
    ModelError if the tool cannot do it.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    CalibrationDataReader.register(type(reader))
    in_8_bits = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    level, handlers = logging.root.level, list(logging.root.handlers)
    logging.root.setLevel(logging.ERROR)  # the tool gives advice in the root logger, for which it makes a handler
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantize_static(source, target, reader, quant_format=QuantFormat.QDQ, per_channel=True, **in_8_bits)
    except DataError:
        raise
    except Exception as error:
        raise ModelError(f"onnxruntime cannot quantise the network: {str(error).strip().splitlines()[0]}") from error
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers


class _RandomImage:
    """One random image for each input. Times do not depend on the ranges that are measured on it."""

    def __init__(self, inputs: list[Any]) -> None:
        draw = np.random.default_rng(0)
        sizes = {one.name: [size if isinstance(size, int) else 1 for size in one.shape] for one in inputs}
        self._left = [{name: draw.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}]

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def _open(content: bytes, threads: int) -> OnnxProgram:
    session = open_session(content, threads)
    names = [given.name for given in session.get_inputs()]
    return OnnxProgram(names, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))


def _open_int8(content: bytes, threads: int) -> OnnxProgram:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        source.write_bytes(content)
        quantise(source, target, _RandomImage(open_session(content, threads).get_inputs()))
        return _open(target.read_bytes(), threads)


ONNXRUNTIME = Engine(
    name="onnxruntime",
    help="onnxruntime on the CPU, from an ONNX file",
    open_onnx=_open,
    requires=PACKAGES,
    package="onnxruntime",
)
ONNXRUNTIME_INT8 = Engine(
    name="onnxruntime-int8",
    help="onnxruntime on the CPU in 8-bit integers, for times; export --int8 has the accuracy",
    open_onnx=_open_int8,
    requires=PACKAGES,
    package="onnxruntime",
    on_request=True,
)
