"""ONNX files in 8-bit integers: onnxruntime's static quantisation."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any, Protocol

from prunus.errors import DataError, ModelError


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
    level, handlers = logging.root.level, list(logging.root.handlers)
    logging.root.setLevel(logging.ERROR)  # the tool gives advice in the root logger, for which it makes a handler
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantize_static(
                source,
                target,
                reader,
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
            )
    except DataError:
        raise
    except Exception as error:
        raise ModelError(f"onnxruntime cannot quantise the network: {str(error).strip().splitlines()[0]}") from error
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
