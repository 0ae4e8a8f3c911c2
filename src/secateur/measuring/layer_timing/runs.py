"""What is run to time a layer or a selection: in PyTorch the block itself, in other engines small ONNX graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from secateur.measuring.engines import Engine
from secateur.measuring.layer_timing import onnx_blocks
from secateur.measuring.layer_timing.blocks import Block
from secateur.measuring.layer_timing.torch_blocks import torch_run, torch_selection


@dataclass(frozen=True)
class Run:
    """Something that can be run and timed."""

    what: Literal["block", "before", "selection", "reading"]
    inputs: int
    outputs: int = 0


@dataclass(frozen=True)
class Sum:
    """A time as a sum of the times of runs, minus the times of others."""

    plus: tuple[Run, ...]
    minus: tuple[Run, ...] = ()


def layer_sum(engine: Engine, block: Block, inputs: int, outputs: int) -> Sum:
    """How the time of a block with these widths is measured."""
    run = Run("block", inputs, outputs)
    if engine.open_onnx is None or not onnx_blocks.has_before(block):
        return Sum((run,))
    return Sum((run,), (Run("before", inputs),))


def selection_sum(engine: Engine, block: Block, inputs: int) -> Sum:
    """How the time of selecting this number of the block's inputs is measured."""
    run = Run("selection", inputs)
    if engine.open_onnx is None or not onnx_blocks.has_before(block):
        return Sum((run,))
    return Sum((run, Run("before", inputs)), (Run("before", block.widths[0]), Run("reading", inputs)))


def open_run(
    engine: Engine, block: Block, run: Run, images: int, device: torch.device, threads: int
) -> Callable[[], Any]:
    """A function that performs a run once."""
    if engine.open_onnx is None:
        if run.what == "selection":
            return torch_selection(block, run.inputs, images, device)
        return torch_run(block, run.inputs, run.outputs, images, device)
    if run.what == "block":
        model, shape = onnx_blocks.onnx_block(block, run.inputs, run.outputs, images)
    elif run.what == "before":
        model, shape = onnx_blocks.onnx_before(block, run.inputs, images)
    else:
        wide = block.widths[0] if run.what == "selection" else 0
        model, shape = onnx_blocks.onnx_reading(block, run.inputs, images, selected_from=wide)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return partial(engine.open_onnx(model, threads), x)
