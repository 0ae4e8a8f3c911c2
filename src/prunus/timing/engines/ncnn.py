"""ncnn on the CPU. pnnx, a program of its own, converts ONNX files for it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prunus.errors import ModelError
from prunus.timing.engines import Engine, OnnxProgram
from prunus.timing.engines._native import python_child, run_child
from prunus.timing.onnx_export import PACKAGES

PARAM, BIN = ".ncnn.param", ".ncnn.bin"

# Loads a network and runs it once: what ncnn does not know may end the process. A number is a return code of ncnn.
_TRY = """
import sys, ncnn
path, shapes = sys.argv[1], [[int(n) for n in shape.split("x") if n] for shape in sys.argv[3:]]
net = ncnn.Net()
code = net.load_param(path + ".ncnn.param") or net.load_model(path + ".ncnn.bin")
if code:
    sys.exit(f"the file cannot be loaded (code {code})")
for number in range(int(sys.argv[2])):
    taker = net.create_extractor()
    for place, shape in enumerate(shapes):
        mat = ncnn.Mat(*reversed(shape))
        mat.fill(0.5)
        taker.input(f"in{place}", mat)
    code, out = taker.extract(f"out{number}")
    if code:
        sys.exit(f"the network cannot be run (code {code})")
"""


def convert_onnx(source: Path, target: Path) -> tuple[list[str], int]:
    """Write the network of an ONNX file as `target`.ncnn.param and `target`.ncnn.bin, in 32-bit numbers.

    ncnn takes one image at a time. The pair is loaded and run once in a child process. ModelError if ncnn cannot.

    Returns:
        The names of the inputs in the ONNX file, which are in0, in1, ... in the pair; and the number of outputs.
    """
    import onnx
    import pnnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            model = _for_one_image(onnx.load(source))
        except Exception as error:  # protobuf's, which is not a package that we ask for
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"ncnn cannot run the network: {source.name} is not an ONNX file") from error
        onnx.save(model, path)
        names = [given.name for given in model.graph.input]
        shapes = [[size.dim_value for size in given.type.tensor_type.shape.dim] for given in model.graph.input]
        asked = ",".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
        output = run_child(
            [pnnx.EXEC_PATH, str(path), f"inputshape={asked}", "fp16=0"], "pnnx cannot convert the network to ncnn"
        )
        made = [path.with_name(f"model{suffix}") for suffix in (PARAM, BIN)]
        if not all(file.is_file() for file in made):
            last = output.splitlines()[-1] if output else "it wrote no file"
            raise ModelError(f"pnnx cannot convert the network to ncnn: {last}")
        sizes = ["x".join(map(str, shape[1:])) for shape in shapes]
        count = len(model.graph.output)
        trial = python_child(_TRY, str(path.with_name("model")), str(count), *sizes)
        # What pnnx could not express still has a type of PyTorch or ONNX.
        kinds = [line.split()[0] for line in made[0].read_text(encoding="utf-8").splitlines()[2:] if line.strip()]
        foreign = sorted({kind for kind in kinds if "." in kind or "::" in kind})
        unknown = f", which has no layer for {', '.join(foreign)}" if foreign else ""
        run_child(trial, f"ncnn cannot run the network{unknown}")
        for file, suffix in zip(made, (PARAM, BIN), strict=True):
            target.with_name(f"{target.name}{suffix}").write_bytes(file.read_bytes())
    return names, count


def _for_one_image(model: Any) -> Any:
    """The network for one image, with its sizes found again."""
    for given in model.graph.input:
        sizes = given.type.tensor_type.shape.dim
        if len(sizes) < 2:
            raise ModelError("ncnn takes networks whose inputs are batches of images [N, ...]")
        sizes[0].ClearField("dim_param")
        sizes[0].dim_value = 1
        if not all(size.dim_value for size in sizes):
            raise ModelError("ncnn takes images of one size: export the network for one")
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    _slices_as_pooling(model.graph)
    return model


def _slices_as_pooling(graph: Any) -> None:
    """Write x[:, :, ::2, ::2] as a 1x1 max pooling with stride 2, which is the same: ncnn has no slice with steps."""
    from onnx import helper, numpy_helper

    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    for place, node in enumerate(graph.node):
        if node.op_type != "Slice" or len(node.input) != 5 or not all(name in known for name in node.input[1:]):
            continue
        starts, ends, axes, steps = (known[name].tolist() for name in node.input[1:])
        whole = all(start == 0 and end >= 2**31 - 1 for start, end in zip(starts, ends, strict=True))
        if whole and all(axis in (2, 3) and step > 1 for axis, step in zip(axes, steps, strict=True)):
            strides = [dict(zip(axes, steps, strict=True)).get(axis, 1) for axis in (2, 3)]
            pool = helper.make_node("MaxPool", node.input[:1], node.output, kernel_shape=[1, 1], strides=strides)
            graph.node.remove(node)
            graph.node.insert(place, pool)


def open_files(path: Path, threads: int) -> Any:
    """The network of the pair `path`.ncnn.param and `path`.ncnn.bin that `convert_onnx` wrote."""
    import ncnn

    network = ncnn.Net()
    network.opt.num_threads = threads
    network.opt.use_fp16_packed = network.opt.use_fp16_storage = network.opt.use_fp16_arithmetic = False
    files = [str(path.with_name(f"{path.name}{suffix}")) for suffix in (PARAM, BIN)]
    if network.load_param(files[0]) or network.load_model(files[1]):
        raise ModelError("ncnn cannot load the network")
    return network


def program(network: Any, names: Sequence[str], count: int, skipped: tuple[int, int] = (0, 0)) -> OnnxProgram:
    """The part of a network that leads from these inputs to `count` outputs, the first ones that are not `skipped`.

    ncnn takes one image at a time, and computes only what an output needs.
    """
    import ncnn

    def one_image(arrays: list[Any]) -> list[Any]:
        taker = network.create_extractor()
        for place, array in enumerate(arrays, skipped[0]):
            if taker.input(f"in{place}", ncnn.Mat(array).clone()):  # in memory of its own: it reads whole vectors
                raise ModelError("ncnn does not take an input of this shape")
        values = []
        for place in range(skipped[1], skipped[1] + count):
            code, out = taker.extract(f"out{place}")
            if code:
                raise ModelError(f"ncnn cannot run the network (code {code})")
            values.append(np.array(out))
        return values

    def run(arrays: list[Any]) -> list[Any]:
        images = [one_image([array[place] for array in arrays]) for place in range(len(arrays[0]))]
        return [np.stack(values) for values in zip(*images, strict=True)]

    return OnnxProgram(list(names), run)


def _open(content: bytes, threads: int) -> OnnxProgram:
    return program(*_converted(content, threads))


def _converted(content: bytes, threads: int) -> tuple[Any, list[str], int]:
    """The network of an ONNX file, the names of its inputs there, and the number of its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source.onnx", Path(folder) / "model"
        source.write_bytes(content)
        names, count = convert_onnx(source, target)
        return open_files(target, threads), names, count


def _open_together(contents: Sequence[bytes], threads: int) -> list[OnnxProgram]:
    """Small networks side by side in one: pnnx takes about as long for all of them as for one."""
    import onnx
    from onnx import compose, helper

    models = [compose.add_prefix(onnx.load_from_string(content), f"n{k}_") for k, content in enumerate(contents)]
    graphs = [model.graph for model in models]
    parts = [[one for graph in graphs for one in getattr(graph, kind)] for kind in ("node", "input", "output")]
    weights = [one for graph in graphs for one in graph.initializer]
    merged = helper.make_graph(parts[0], "together", parts[1], parts[2], weights)
    first = models[0]
    model = helper.make_model(merged, opset_imports=first.opset_import, ir_version=first.ir_version)
    network, names, _ = _converted(model.SerializeToString(), threads)
    programs, inputs, outputs = [], 0, 0
    for graph in graphs:
        end = inputs + len(graph.input)
        programs.append(program(network, names[inputs:end], len(graph.output), (inputs, outputs)))
        inputs, outputs = end, outputs + len(graph.output)
    return programs


NCNN = Engine(
    name="ncnn",
    help="ncnn on the CPU, converted by pnnx",
    open_onnx=_open,
    open_together=_open_together,
    requires={**PACKAGES, "ncnn": "ncnn", "pnnx": "ncnn"},
    package="ncnn",
    on_request=True,
    selection="convolution",  # it has no layer that selects channels
)
