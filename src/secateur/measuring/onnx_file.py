"""A finished ONNX file as a network: engines that read ONNX run it as it is."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.errors import FileError, ModelError
from secateur.measuring.engines import require
from secateur.measuring.onnx_export import PACKAGES, open_session, run_session


class OnnxFile(nn.Module):
    """The network in an ONNX file with one input of images. PyTorch cannot change it; calling it runs onnxruntime."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        require(PACKAGES, "reading an ONNX file")
        self.path = Path(path)
        try:
            self.content = self.path.read_bytes()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror or error}") from error
        given = self.session.get_inputs()
        if len(given) != 1 or len(given[0].shape) < 2:
            raise ModelError(f"{path} must have one input [N, ...], but has {[one.name for one in given]}")
        self.shape: tuple[int, ...] = tuple(given[0].shape[1:])  # of an image
        if not all(isinstance(size, int) for size in self.shape):
            raise ModelError(f"{path} takes images of any size {list(self.shape)}; export it for one size")

    @cached_property
    def session(self) -> Any:
        """The file, opened in onnxruntime on PyTorch's number of threads."""
        return open_session(self.content, torch.get_num_threads())

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(np.asarray(run_session(self.session, images)[0]))
