"""Networks in 8-bit integers: onnxruntime's static quantisation, calibrated on images and checked by accuracy."""

from __future__ import annotations

import logging
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from prunus.errors import DataError, ModelError
from prunus.graph.traced import Example
from prunus.ship.fold import fold_batch_norm
from prunus.tasks.evaluate import Evaluation, evaluate
from prunus.timing.engines import require
from prunus.timing.onnx_export import PACKAGES, OnnxFile, export_onnx
from prunus.util.batches import Batches, unpack
from prunus.util.files import atomic

MAX_DROP = 1.0  # points of accuracy


@dataclass(frozen=True)
class Int8Export:
    """The file that was written, and the accuracy before and after on the same images."""

    path: Path
    bytes: int
    before: Evaluation
    after: Evaluation
    num_calibration: int

    @property
    def drop(self) -> float:
        """Points of accuracy lost."""
        return 100 * (self.before.quality - self.after.quality)


def export_int8(
    model: nn.Module,
    example: Example,
    path: str | Path,
    calibration: Batches,
    holdout: Batches,
    *,
    max_drop: float = MAX_DROP,
) -> Int8Export:
    """Write `model` as an ONNX file whose convolutions and linear layers compute in 8-bit integers.

    Weights have a scale for each output channel, and the file holds pairs of QuantizeLinear and DequantizeLinear, which
    onnxruntime and OpenVINO both fuse.

    Args:
        model: The network.
        example: An input, for its shape.
        path: The file, which ends in .onnx.
        calibration: Images (with labels, which are not used) from which the ranges of activations are measured; images
            that the network was trained on are right.
        holdout: Other images with labels, on which the accuracy of both networks is measured.
        max_drop: Points of accuracy that may be lost. ModelError if more are, and nothing is written.
    """
    require(PACKAGES, "int8 export")
    path = Path(path)
    if path.suffix != ".onnx":
        raise ModelError(f"int8 is a kind of ONNX file: give a name that ends in .onnx, not {path.name}")
    if max_drop < 0:
        raise ModelError(f"max_drop must be at least 0 points, got {max_drop}")
    before = evaluate(model, holdout)
    with tempfile.TemporaryDirectory() as folder, atomic(path) as part:
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        export_onnx(fold_batch_norm(model, example), example, plain)
        reader = _Calibration(calibration, OnnxFile(plain).session.get_inputs()[0].name)
        _quantise(plain, made, reader)
        after = evaluate(OnnxFile(made), holdout)
        done = Int8Export(path, made.stat().st_size, before, after, reader.num_images)
        if done.drop > max_drop:
            change = f"{100 * before.quality:.2f}% to {100 * after.quality:.2f}%"
            raise ModelError(
                f"int8 loses {done.drop:.2f} points of accuracy ({change} on {before.num_images} images), and "
                f"at most {max_drop:g} are allowed; nothing was written. Calibrate on more images, or allow more with "
                "--max-drop"
            )
        part.write_bytes(made.read_bytes())
    return done


class _Calibration:
    """Images as onnxruntime's tool asks for them: one at a time, so that a fixed number of images does not matter."""

    def __init__(self, batches: Batches, name: str) -> None:
        self.num_images, self._name = 0, name
        unpacked = (unpack(batch, index)[0] for index, batch in enumerate(batches))
        self._images = (image for images in unpacked for image in images.split(1))

    def get_next(self) -> dict[str, Any] | None:
        """The next image; None after the last one."""
        image = next(self._images, None)
        if image is None:
            if not self.num_images:
                raise DataError("there are no images to calibrate int8 on")
            return None
        self.num_images += 1
        return {self._name: np.ascontiguousarray(image.cpu().numpy())}


def _quantise(source: Path, target: Path, reader: _Calibration) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    CalibrationDataReader.register(_Calibration)
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # the tool gives advice in the root logger
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
