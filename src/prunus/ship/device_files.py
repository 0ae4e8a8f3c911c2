"""Files for phones and small devices: ExecuTorch, ncnn, MNN, LiteRT, Core ML. Each is written, read back and run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunus.errors import FileError, ModelError
from prunus.graph.selection import with_convolutions
from prunus.graph.traced import Example
from prunus.ship import DEVICE_FORMATS, DeviceFormat
from prunus.timing.engines import ENGINES, OnnxProgram, require
from prunus.timing.engines._native import silent
from prunus.timing.onnx_export import Difference, compare, comparison_batches, export_program, exported, inputs_of
from prunus.util.batches import call
from prunus.util.files import write_atomically
from prunus.util.state import evaluating, generators_kept, module_state_kept
from prunus.util.user_code import failure

Runner = Callable[[Any], list[Any]]
Writer = Callable[[nn.Module, Example, Path], Runner]  # writes a file, and opens it


def export_device_file(
    kind: DeviceFormat, model: nn.Module, example: Example, path: Path, images: Tensor | None
) -> Difference:
    """Write `model` for batches of the example's size, run the file in its engine and compare it with PyTorch.

    Core ML runs on Apple's machines only: there the folder's structure is checked, and no image is compared.
    """
    if kind == "mlpackage":
        require({"coremltools": "coreml"}, "export to Core ML")
    else:
        ENGINES.find(DEVICE_FORMATS[kind]).check_installed()
    with evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad():
        if kind == "mlpackage":
            _write_core_ml(model, example, path)
            return Difference(0.0, 0)
        batches = comparison_batches(example, images, dynamic_batch=False)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / f"model.{'ncnn.param' if kind == 'ncnn' else kind}"
            run = _WRITERS[kind](model, example, made)
            difference = compare(model, lambda batch: [torch.as_tensor(value) for value in run(batch)], batches)
            if kind == "ncnn":  # the weights first: a .param file is never without its .bin
                write_atomically(weights_beside(path), weights_beside(made).read_bytes())
            write_atomically(path, made.read_bytes())
    return difference


def weights_beside(param: Path) -> Path:
    """small.ncnn.bin for small.ncnn.param."""
    return param.with_suffix(".bin")


def _write_pte(model: nn.Module, example: Example, path: Path) -> Runner:
    from prunus.timing.engines.executorch import lowered, opened

    path.write_bytes(lowered(model, example))
    return opened(path.read_bytes(), torch.get_num_threads())


def _write_tflite(model: nn.Module, example: Example, path: Path) -> Runner:
    from prunus.timing.engines.litert import converted, opened, positional

    path.write_bytes(converted(model, example))
    run = opened(path.read_bytes(), torch.get_num_threads())
    return lambda batch: run(positional(model, batch))


def _write_mnn(model: nn.Module, example: Example, path: Path) -> Runner:
    from prunus.timing.engines.mnn import convert_onnx, open_file

    source = path.with_name("source.onnx")
    source.write_bytes(exported(model, example, ENGINES["mnn"].selection))
    convert_onnx(source, path)
    return _on_batches(open_file(path, torch.get_num_threads()))


def _write_ncnn(model: nn.Module, example: Example, path: Path) -> Runner:
    from prunus.timing.engines.ncnn import PARAM, convert_onnx, open_files, program

    if any(isinstance(value, Tensor) and len(value) != 1 for value in tree_leaves(example)):
        raise ModelError("ncnn takes one image at a time: leave out the fixed batch")
    source, stem = path.with_name("source.onnx"), path.with_name(path.name.removesuffix(PARAM))
    source.write_bytes(exported(model, example, ENGINES["ncnn"].selection))
    names, count = convert_onnx(source, stem)
    return _on_batches(program(open_files(stem, torch.get_num_threads()), names, count))


def _on_batches(opened: OnnxProgram) -> Runner:
    return lambda batch: list(opened.run(inputs_of(batch, opened.inputs)))


_WRITERS: Mapping[str, Writer] = {"pte": _write_pte, "tflite": _write_tflite, "mnn": _write_mnn, "ncnn": _write_ncnn}


def _write_core_ml(model: nn.Module, example: Example, path: Path) -> None:
    """An ML program in 32-bit numbers. Sizes of inputs and outputs and the number of layers must be PyTorch's."""
    if path.exists() and not (path / "Manifest.json").is_file():
        raise FileError(f"{path} exists and is no Core ML package; write to another folder")
    model = with_convolutions(model, example)
    wanted = [list(value.shape) for value in tree_leaves(call(model, example)) if isinstance(value, Tensor)]
    program = export_program(model, example, dynamic_batch=False)
    layers = ("conv", "linear", "addmm")
    called = [str(node.target) for node in program.graph.nodes if node.op[:4] == "call"]
    count = sum(any(name in target for name in layers) for target in called)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = Path(folder) / "model.mlpackage"
        try:
            with silent():
                import coremltools

                made = coremltools.convert(
                    program.run_decompositions({}),
                    convert_to="mlprogram",
                    compute_precision=coremltools.precision.FLOAT32,
                    minimum_deployment_target=coremltools.target.iOS16,
                )
                made.save(str(part))
                spec = coremltools.utils.load_spec(str(part))
        except Exception as error:  # the converter raises anything
            raise ModelError(f"Core ML cannot express {type(model).__name__}: {failure(error)}") from error
        function = spec.mlProgram.functions["main"]
        kinds = [one.type for one in function.block_specializations[function.opset].operations]
        written = sum(kind in ("conv", "conv_transpose", "linear", "matmul") for kind in kinds)
        sizes = [list(one.type.multiArrayType.shape) for one in spec.description.output]
        if written != count or sizes != wanted:
            raise ModelError(
                f"the Core ML package is not the network: it has {written} layers and outputs {sizes}, and the network "
                f"has {count} and {wanted}"
            )
        old = Path(folder) / "old"
        if path.exists():
            path.rename(old)
        part.rename(path)
        shutil.rmtree(old, ignore_errors=True)
