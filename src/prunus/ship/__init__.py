"""Shipping: networks as files that run without prunus, and how fast they run.

The formats are listed here, so that they can be read without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from prunus.errors import ModelError
from prunus.util.registry import unknown

DeviceFormat = Literal["pte", "ncnn", "mnn", "tflite", "mlpackage"]
DEVICE_FORMATS = {"pte": "executorch", "ncnn": "ncnn", "mnn": "mnn", "tflite": "litert", "mlpackage": ""}  # -> engine
Format = Literal["onnx", "pt2", "safetensors", "py", "pte", "ncnn", "mnn", "tflite", "mlpackage"]
FORMATS = ("onnx", "pt2", "safetensors", "py", *DEVICE_FORMATS)
SUFFIXES = ".onnx, .pt2, .safetensors, .py, .pte, .ncnn.param, .mnn, .tflite or .mlpackage"


def file_format(path: Path, format: str | None = None) -> Format:
    """The format that is asked for, or that the suffix of `path` names."""
    name = format or ("ncnn" if path.name.endswith(".ncnn.param") else path.suffix.removeprefix("."))
    if name == "ncnn" and not path.name.endswith(".ncnn.param"):
        raise ModelError(f"ncnn has two files: give a name that ends in .ncnn.param, not {path.name}")
    if name not in FORMATS:
        hint = "" if format else f". Give a format, or {path} a suffix that names it"
        raise ModelError(unknown("export format", name, FORMATS) + hint)
    return cast(Format, name)
