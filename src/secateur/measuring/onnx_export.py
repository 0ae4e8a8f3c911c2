"""ONNX files: written from a network, checked after writing, and run by onnxruntime."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.traced import Example
from secateur.errors import ModelError
from secateur.measuring.engines import require
from secateur.measuring.program_export import Difference, compare, comparison_batches, export_program

PACKAGES: Mapping[str, str] = {"onnx": "onnx", "onnxscript": "onnx", "onnxruntime": "onnx"}  # package -> extra
OLDEST = 18  # the opset that torch's exporter writes; older ones are converted from it


def export_onnx(
    model: nn.Module,
    example: Example,
    path: Path,
    *,
    opset: int | None = None,
    images: Tensor | None = None,
    dynamic_batch: bool = True,
) -> tuple[int, Difference]:
    """Write `model` to `path`, run the file in onnxruntime and compare it with PyTorch. `model` is not changed.

    The input is called `input` and the output `output`. Several inputs have the names of forward's arguments; several
    outputs have the keys of the dict that forward returns, or are output_0, output_1, ... A dynamic batch is `batch`.
    opset: ONNX opset; torch's own choice if not given.
    images: images to compare on; random ones if not given.
    dynamic_batch: the file takes any number of images at a time; otherwise that of the example.
    Returns the opset of the file and the difference. Raises ModelError if the network cannot be written or differs.
    """
    require(PACKAGES, "ONNX export")
    with evaluating(model), generators_kept(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn about themselves
        batches = comparison_batches(example, images, dynamic_batch)
        written = _write(export_program(model, example, dynamic_batch), path, opset)
        session = open_session(path, torch.get_num_threads())
        run = lambda batch: [torch.from_numpy(np.asarray(o)) for o in run_session(session, batch)]  # noqa: E731
        return written, compare(model, run, batches)


def open_session(path: Path | bytes, threads: int) -> Any:
    """An onnxruntime session on the CPU, of a file or of its content."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot run the file: {str(error).strip().splitlines()[0]}") from error


def run_session(session: Any, batch: Any) -> list[Any]:
    """The outputs for a batch: a tensor, or a tuple or dict of tensors, in the order of the network's arguments."""
    tensors = [t for t in tree_flatten(batch)[0] if isinstance(t, Tensor)]
    names = [given.name for given in session.get_inputs()]
    if isinstance(batch, dict) and len(names) > 1:
        feed = {name: np.ascontiguousarray(batch[name].cpu().numpy()) for name in names}
    else:
        feed = {name: np.ascontiguousarray(t.cpu().numpy()) for name, t in zip(names, tensors, strict=True)}
    outputs: list[Any] = session.run(None, feed)
    return outputs


def _write(program: Any, path: Path, opset: int | None) -> int:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 1 <= opset <= newest:
        raise ModelError(f"the installed onnx knows opsets 1 to {newest}, not {opset}")
    proto = _onnx_program(program, opset if opset is None else max(opset, OLDEST))
    if opset is not None and opset < OLDEST:
        proto = _older(proto, opset)
    found = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if opset is not None and found != opset:
        raise ModelError(f"ONNX opset {opset} was requested, but torch's exporter can only write opset {found}")
    onnx.save(proto, path)
    return int(found)


def _onnx_program(program: Any, opset: int | None) -> Any:
    with _quiet("torch.onnx"):
        try:
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=opset, **_names(program))
        except Exception as error:
            which = f" (opset {opset})" if opset else ""
            raise ModelError(f"ONNX cannot express this network{which}: {_first_cause(error)}") from error
    proto = made.model_proto  # type: ignore[union-attr]
    _name_batch_axis(proto.graph)
    return proto


def _names(program: Any) -> dict[str, Any]:
    """Names of inputs and outputs. Several inputs keep those that torch gives them: forward's arguments."""
    outputs = program.call_spec.out_spec
    places = outputs.unflatten(list(range(outputs.num_leaves)))  # the structure of the output, with numbers for tensors
    if isinstance(places, dict) and sorted(places.values(), key=str) == list(range(len(places))):
        found = [str(key) for key, _ in sorted(places.items(), key=lambda pair: pair[1])]
    else:
        found = [f"output_{number}" for number in range(outputs.num_leaves)]
    named = {"output_names": ["output"] if outputs.num_leaves == 1 else found}
    return {**named, "input_names": ["input"]} if len(program.graph_signature.user_inputs) == 1 else named


def _name_batch_axis(graph: Any) -> None:
    """Call the first input's first axis `batch` wherever its symbol occurs, also in terms such as 2*s77."""
    values = [*graph.input, *graph.output, *graph.value_info]
    sizes = [size for value in values for size in value.type.tensor_type.shape.dim if size.dim_param]
    symbol = sizes[0].dim_param if sizes else ""
    for size in sizes if symbol.isidentifier() else []:
        size.dim_param = re.sub(rf"\b{symbol}\b", "batch", size.dim_param)


def _first_cause(error: BaseException) -> str:
    """The original error in one line. torch's exporter wraps it in advice to its own developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _older(proto: Any, opset: int) -> Any:
    from onnx import version_converter

    try:
        return version_converter.convert_version(proto, opset)
    except Exception as error:
        reason = str(error).strip().splitlines()[0].rpartition("failed: ")[2] if str(error).strip() else ""
        raise ModelError(
            f"this network cannot be written in ONNX opset {opset} ({reason}); use opset {OLDEST} or later"
        ) from error


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a logger below errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
