"""onnxruntime on the CPU, from an ONNX file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.timing.engines import Engine, PreparedModel
from prunus.timing.onnx_export import PACKAGES, export_onnx, open_session, run_session


def _make(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(model, example, path)
        session = open_session(path, threads)  # holds the whole network: the file is no longer needed
    return PreparedModel(partial(run_session, session), torch.device("cpu"))


def _open(model: bytes, threads: int) -> Callable[[Any], Any]:
    session = open_session(model, threads)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})


ONNXRUNTIME = Engine(
    name="onnxruntime",
    help="onnxruntime on the CPU, from an ONNX file",
    make=_make,
    requires=PACKAGES,
    package="onnxruntime",
    open_onnx=_open,
)
