"""The formats that a network can be exported to. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from prunus.errors import ModelError
from prunus.util.registry import unknown

Format = Literal["onnx", "pt2", "safetensors", "py"]
FORMATS = ("onnx", "pt2", "safetensors", "py")
NUM_CALIBRATION = 200  # images that the ranges of 8-bit integers are measured on


def file_format(path: Path, format: str | None = None) -> Format:
    """The format that is asked for, or that the suffix of `path` names."""
    name = format or path.suffix.removeprefix(".")
    if name not in FORMATS:
        hint = "" if format else f". Give a format, or {path} a suffix that names it"
        raise ModelError(unknown("export format", name, FORMATS) + hint)
    return cast(Format, name)
