"""A network as a file that runs without prunus, checked after it is written. No file contains a pickle."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunus.errors import DataError, FileError, ModelError
from prunus.graph.files import read_tensors, save
from prunus.graph.plan import Plan
from prunus.graph.record import left_as_found
from prunus.graph.traced import Example
from prunus.ship import DEVICE_FORMATS, DeviceFormat, Format, file_format
from prunus.ship.device_files import export_device_file, weights_beside
from prunus.ship.fold import fold_batch_norm
from prunus.ship.python_file import Original, export_python
from prunus.timing.latency import check_example
from prunus.timing.onnx_export import (
    Difference,
    compare,
    comparison_batches,
    export_onnx,
    export_program,
    takes_any_batch,
)
from prunus.util.batches import call, device_of, to_device
from prunus.util.files import atomic
from prunus.util.progress import PhaseProgress, phases, shown
from prunus.util.state import evaluating, generators_kept, module_state_kept, overrides_train
from prunus.util.user_code import failure


@dataclass(frozen=True)
class Exported:
    """The file that was written, and how close its outputs are to PyTorch's.

    Attributes:
        path: The file, or the folder if there is a plan.
        format: onnx, pt2, safetensors, py, pte, ncnn, mnn, tflite or mlpackage.
        bytes: The size of the file, with that of the weights beside it.
        error: The largest difference from PyTorch's outputs, relative to how much the values of each vary.
        num_images: Images that were compared; 0 for Core ML, whose files run on Apple's machines only.
        opset: Of an ONNX file.
    """

    path: Path
    format: Format
    bytes: int
    error: float
    num_images: int
    opset: int | None = None


def export(
    model: nn.Module,
    example: Example,
    path: str | Path,
    format: Format | None = None,
    *,
    fold_bn: bool = False,
    opset: int | None = None,
    images: Tensor | None = None,
    dynamic_batch: bool = True,
    plan: Plan | None = None,
    original: Original | None = None,
    arguments: Mapping[str, Any] | None = None,
    progress: PhaseProgress | bool | None = None,
) -> Exported:
    """Write `model` to `path`, read it back, run it, and compare it with PyTorch. `model` is not changed.

    Args:
        model: The network.
        example: An input, for its shape.
        path: The file to write.
        format: "onnx" (for onnxruntime), "pt2" (torch.export; load with `torch.export.load(path).module()`),
            "safetensors" (tensors only; with `plan`, a folder for `prunus.load`) or "py" (a Python file that builds the
            narrow network from its own class, and the weights beside it). For devices: "pte" (ExecuTorch with XNNPACK),
            "ncnn" (small.ncnn.param, and small.ncnn.bin beside it), "mnn", "tflite" (LiteRT) and "mlpackage" (Core ML).
            Default: by the suffix of `path`.
            A program that loads a .pt2 whose outputs are dataclasses registers them first, with their full names:
            torch.export.register_dataclass(Answer, serialized_type_name="package.module.Answer").
        fold_bn: Fold batch norms into the layers before them, see `fold_batch_norm`.
        opset: ONNX opset; torch's own choice if not given.
        images: Images to compare on, as the network takes them; the example with noise if not given.
        dynamic_batch: The file takes any number of images at a time; otherwise that of the example. Those for devices
            always take that of the example.
        plan: The plan of a pruned network, which is saved with it.
        original: For "py", what builds the unpruned network: a class or function of a module, a `functools.partial` of
            one, `"module:factory"` or a name of the zoo. By default the model's class, without arguments.
        arguments: For "py", keyword arguments of `original`.
        progress: Called with phase, steps done, steps in all and a note; False for silence.

    Raises:
        ModelError: The network cannot be written in this format, or what was written computes something else.
        DataError: The example, or the images, are not what the network takes.
        FileError: The file cannot be written.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {getattr(model, '__name__', type(model).__name__)}")
    if not isinstance(path, str | Path):
        raise FileError(f"expected export(model, example, path) with the path of a file, got {type(path).__name__}")
    path = Path(path)
    kind = file_format(path, format or ("safetensors" if plan is not None else None))
    if opset is not None and kind != "onnx":
        raise ModelError(f"opset applies to the format onnx only, got opset={opset} with format {kind}")
    if kind != "py" and (original is not None or arguments):
        raise ModelError(f"original and arguments apply to the format py only, not to {kind}")
    if kind == "safetensors" and not fold_bn:
        return _export_tensors(model, path, plan)
    if fold_bn and (kind == "py" or plan is not None):
        raise ModelError(
            "a network with folded batch norms no longer has the layers of its class, so it cannot be built from it; "
            "export it without fold_bn, or as onnx or pt2"
        )
    kept = module_state_kept(model, weights=overrides_train(model))
    with left_as_found(model), kept, shown(progress, phases) as report:
        check_input(model, example)
        path.parent.mkdir(parents=True, exist_ok=True)
        report("export", 0, 1, "")
        if fold_bn:
            model = fold_batch_norm(model, example)
        if kind == "safetensors":
            return _export_tensors(model, path, None)
        if kind == "py":
            difference = export_python(
                model, example, path, original=original, arguments=arguments, images=images, dynamic_batch=dynamic_batch
            )
        elif kind in DEVICE_FORMATS:
            difference = export_device_file(cast(DeviceFormat, kind), model, example, path, images)
        else:
            with atomic(path) as part:
                if kind == "onnx":
                    opset, difference = export_onnx(
                        model, example, part, opset=opset, images=images, dynamic_batch=dynamic_batch
                    )
                else:
                    difference = _export_pt2(model, example, part, images, dynamic_batch)
        report("export", 1, 1, "")
    beside = {"py": [path.with_suffix(".safetensors")], "ncnn": [weights_beside(path)]}.get(kind, [])
    files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else [path, *beside]
    size = sum(f.stat().st_size for f in files)
    return Exported(path, kind, size, difference.error, difference.num_images, opset)


def check_input(model: nn.Module, example: Example) -> None:
    """DataError unless the example is a batch that the network takes."""
    arrays = [value for value in tree_leaves(example) if isinstance(value, np.ndarray)]
    if arrays:
        raise DataError(f"the example is a numpy array {list(arrays[0].shape)}; pass a tensor: torch.from_numpy(...)")
    check_example(example)
    with evaluating(model), generators_kept(), torch.no_grad():
        try:
            call(model, to_device(example, device_of(model)))
        except Exception as error:  # the network's own code may raise anything
            shapes = [list(value.shape) for value in tree_leaves(example) if isinstance(value, Tensor)]
            raise DataError(
                f"{type(model).__name__} does not run on the example {' and '.join(map(str, shapes))}: {failure(error)}"
            ) from error


def _export_pt2(
    model: nn.Module, example: Example, path: Path, images: Tensor | None, dynamic_batch: bool
) -> Difference:
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about itself
        dynamic_batch = dynamic_batch and takes_any_batch(model, example)
        batches = comparison_batches(example, images, dynamic_batch)
        program = export_program(model, example, dynamic_batch)
        program.example_inputs = None  # torch would pickle them
        try:
            with path.open("wb") as writing:
                torch.export.save(program, writing)
            with path.open("rb") as reading:
                loaded = torch.export.load(reading).module()
        except Exception as error:  # torch.export raises many kinds
            raise ModelError(
                f"torch.export cannot write the inputs and outputs of {type(model).__name__}: {failure(error)}. Use "
                "onnx, or a module that returns tensors, tuples, lists and dicts"
            ) from error
        with zipfile.ZipFile(path) as archive:
            configs = [json.loads(archive.read(n)) for n in archive.namelist() if n.endswith("_config.json")]
            pickled = [k for c in configs for k, entry in c["config"].items() if entry["use_pickle"]]
            pickled += [n for n in archive.namelist() if "sample_inputs" in n and archive.getinfo(n).file_size]
        if pickled:
            raise ModelError(f"torch.export would pickle {', '.join(pickled[:5])}; use onnx or safetensors")

        def run(batch: Any) -> Any:
            with module_state_kept(loaded):
                return call(loaded, batch)

        return compare(model, run, batches)


def _export_tensors(model: nn.Module, path: Path, plan: Plan | None) -> Exported:
    file = path if plan is None else path / "model.safetensors"
    if plan is not None:
        save(model, plan, path)
    else:
        with atomic(path) as part:
            save_model(model, str(part))
    written, own = read_tensors(file), model.state_dict()
    if any(not torch.equal(tensor, own[name].cpu()) for name, tensor in written.items()):
        raise FileError(f"{file} does not contain the tensors that were written to it; check the disk")
    return Exported(path, "safetensors", file.stat().st_size, 0.0, 0)
