"""onnxruntime on the CPU, in 32-bit numbers and in 8-bit integers (its static quantisation)."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from prunus.errors import DataError, ModelError
from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.onnx_export import PACKAGES, inputs_of, open_session


def quantise(content: bytes, images: Iterable[Any]) -> bytes:
    """An ONNX file in 8-bit integers, with ranges of activations measured on `images`, inputs of one image each.

    Weights have a scale for each output channel, and the file holds pairs of QuantizeLinear and DequantizeLinear.
    Activations are unsigned, for which kernels are fast, and weights use 7 of the 8 bits: processors without VNNI add
    two products in 16 bits, which 255 x 127 + 255 x 127 would overflow. ModelError if the tool cannot do it.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    model = onnx.load_from_string(content)
    graph = model.graph
    for node in [node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]:
        # Selections as convolutions: the tool takes a constant for an activation, and an initializer for a weight.
        graph.initializer.add().CopyFrom(node.attribute[0].t)
        graph.initializer[-1].name = node.output[0]
        graph.node.remove(node)
    weights = {tensor.name for tensor in graph.initializer}
    reader = _Reader([given.name for given in graph.input if given.name not in weights], iter(images))
    CalibrationDataReader.register(_Reader)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "reduce_range": True}
    level, handlers = logging.root.level, list(logging.root.handlers)
    logging.root.setLevel(logging.ERROR)  # the tool gives advice in the root logger, for which it makes a handler
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter("ignore")
            source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
            source.write_bytes(model.SerializeToString())
            quantize_static(source, target, reader, quant_format=QuantFormat.QDQ, per_channel=True, **kinds)
            return target.read_bytes()
    except DataError:
        raise
    except Exception as error:
        raise ModelError(f"onnxruntime cannot quantise the network: {str(error).strip().splitlines()[0]}") from error
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers


class _Reader:
    """Images as onnxruntime's tool asks for them: one at a time, by the names of the inputs; None after the last."""

    def __init__(self, names: list[str], images: Iterator[Any]) -> None:
        self._names, self._images, self._begun = names, images, False

    def get_next(self) -> dict[str, Any] | None:
        image = next(self._images, None)
        if image is None:
            if not self._begun:
                raise DataError("there are no images to calibrate int8 on")
            return None
        self._begun = True
        return dict(zip(self._names, inputs_of(image, self._names), strict=True))


def _open(content: bytes, threads: int) -> OnnxProgram:
    session = open_session(content, threads)
    names = [given.name for given in session.get_inputs()]
    return OnnxProgram(names, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))


def in_8_bits(content: bytes) -> bytes:
    """A file in 8-bit integers as it is; of one in 32-bit numbers, with ranges of a random image, for its time."""
    import onnx

    shapes = [one.shape for one in open_session(content, threads=1).get_inputs()]
    if any(node.op_type == "QuantizeLinear" for node in onnx.load_from_string(content).graph.node):
        return content
    draw = torch.Generator().manual_seed(0)
    sizes = [[size if isinstance(size, int) else 1 for size in shape] for shape in shapes]
    return quantise(content, [tuple(torch.randn(size, generator=draw) for size in sizes)])


ONNXRUNTIME = Engine(
    name="onnxruntime",
    help="onnxruntime on the CPU, from an ONNX file",
    open_onnx=_open,
    requires=PACKAGES,
    package="onnxruntime",
)
ONNXRUNTIME_INT8 = Engine(
    name="onnxruntime-int8",
    help="onnxruntime on the CPU in 8-bit integers",
    open_onnx=lambda content, threads: _open(in_8_bits(content), threads),
    quantise=quantise,
    requires=PACKAGES,
    package="onnxruntime",
    on_request=True,
)
