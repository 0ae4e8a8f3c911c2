"""A network in ONNX, run by onnxruntime beside PyTorch."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def onnx_error(model: nn.Module, image: Tensor, dynamo: bool) -> float:
    """The largest difference between onnxruntime's output and PyTorch's, against the largest output; float32."""
    import onnxruntime

    model, image = model.float().eval(), image.float()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn about themselves
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (image,), path, dynamo=dynamo, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (got, *_) = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    with torch.no_grad():
        want = model(image).numpy()
    return float(np.abs(got - want).max() / np.abs(want).max())
