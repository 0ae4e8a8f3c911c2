"""ONNX files run by onnxruntime, with as many threads as PyTorch has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from secateur.errors import ModelError


def onnx_session(path: Path) -> Any:
    """An onnxruntime session on the CPU."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError("onnxruntime is not installed: pip install 'secateur[onnx]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, batch: Any) -> list[Any]:
    """The outputs for a batch: a tensor, or a tuple or dict of tensors, in the order of the network's arguments."""
    tensors = [t for t in tree_flatten(batch)[0] if isinstance(t, Tensor)]
    names = [given.name for given in session.get_inputs()]
    if isinstance(batch, dict):
        feed = {name: np.ascontiguousarray(batch[name].cpu().numpy()) for name in names}
    else:
        feed = {name: np.ascontiguousarray(t.cpu().numpy()) for name, t in zip(names, tensors, strict=True)}
    found: list[Any] = session.run(None, feed)
    return found
