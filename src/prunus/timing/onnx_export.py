"""ONNX files: written from a network, checked after writing, and run by onnxruntime."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from prunus.errors import DataError, FileError, ModelError, RunError
from prunus.graph.branches import has_absent, plain_network
from prunus.graph.compare import distance
from prunus.graph.record import trace_calls
from prunus.graph.runner import copied
from prunus.graph.selection import with_convolutions
from prunus.graph.traced import Example, as_call
from prunus.timing.engines import ENGINES, NUM_CALIBRATION, SelectionForm, require
from prunus.util.batches import call, count_images, device_of, to_device
from prunus.util.state import evaluating, generators_kept, module_state_kept

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3  # relative to how much the values of an output vary: other kernels add in another order


@dataclass(frozen=True)
class Difference:
    """How far the outputs of an exported network are from the original's."""

    error: float  # largest difference, relative to how much the values of its output vary
    num_images: int


def export_program(model: nn.Module, example: Example, dynamic_batch: bool) -> Any:
    """The program of torch.export, for any number of images (`dynamic_batch`) or for that of the example."""
    model = without_gaps(model, example)
    args, kwargs = as_call(example)
    shapes = None
    dynamic_batch = dynamic_batch and takes_any_batch(model, example)
    if dynamic_batch:
        batch = torch.export.Dim("batch")
        # two images, because torch takes a size of 1 for a constant
        double = lambda v: torch.cat([v[:1], v[:1]]) if isinstance(v, Tensor) and v.dim() else v  # noqa: E731
        args, kwargs = tree_map(double, args), tree_map(double, kwargs)
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        shapes = tree_map(lambda v: {0: batch} if isinstance(v, Tensor) and v.dim() else None, dict(given))
    # torch.export does not look into dataclasses in the model's output unless it is told about them.
    with evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad():
        left = [model(*tree_map(copied, args), **tree_map(copied, kwargs))]
    while left:
        for value in tree_flatten(left.pop())[0]:
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                kind = type(value)
                torch.export.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
                left += [getattr(value, field.name) for field in dataclasses.fields(value)]
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:
        reason = next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)
        hint = " Try dynamic_batch=False: the file then takes a fixed number of images." if dynamic_batch else ""
        raise ModelError(f"torch.export cannot follow {type(model).__name__}: {reason}.{hint}") from error


def without_gaps(model: nn.Module, example: Example) -> nn.Module:
    """The network without a trace of the branches that were removed from it; itself if there are none."""
    traced = trace_calls(model, example) if has_absent(model) else None
    # Code that looks at sizes (a guard) has seen the number of images of the example: it is left as it is.
    return model if traced is None or traced.guards else plain_network(traced).eval()


def takes_any_batch(model: nn.Module, example: Example) -> bool:
    """Whether the network takes three images and one image of the example: not if it takes one without a batch, or
    clips of several."""
    with evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad(), suppress(Exception):
        for batch in comparison_batches(example, None, dynamic_batch=True):
            call(model, to_device(batch, device_of(model)))
        return True
    return False  # the network's own code may raise anything


def compare(model: nn.Module, exported: Callable[[Any], Any], batches: list[Any]) -> Difference:
    """Run both on all batches. Raises ModelError if an output differs by more than 1e-3 of how much it varies.

    `exported` takes a batch of the same structure and returns the same outputs, in any nesting.
    """
    error = 0.0
    for batch in batches:
        with module_state_kept(model):
            want = tree_flatten(call(model, to_device(batch, device_of(model))))[0]
        given = (value for value in tree_flatten(exported(batch))[0] if value is not None)
        pairs = zip([value for value in want if value is not None], given, strict=True)  # ONNX has no None
        # Each output as a whole: a channel that hardly varies is nothing but the rounding of a kernel.
        values = [(w.cpu().reshape(-1), g.to(w.dtype).reshape(-1)) for w, g in pairs if isinstance(w, Tensor)]
        error = max(error, distance([got for _, got in values], [wanted for wanted, _ in values]))
    if error > TOLERANCE:
        raise ModelError(
            f"the exported network's output differs from PyTorch's by {error:.1e} of how much its values vary; "
            f"at most {TOLERANCE:g} is accepted"
        )
    return Difference(error, sum(len(tree_flatten(batch)[0][0]) for batch in batches))


def comparison_batches(example: Example, images: Tensor | None, dynamic_batch: bool) -> list[Any]:
    """Batches to compare on: the given images, or the example with noise added. A dynamic batch is tried with several
    and with one."""
    draw = torch.Generator().manual_seed(0)

    def random_like(value: Any, count: int | None) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        shape = (count or len(value), *value.shape[1:])
        if not value.is_floating_point():
            return value[:1].expand(shape).contiguous()
        # A detector finds nothing in noise alone, and probabilities near 0 are nothing but the rounding of a sigmoid.
        return value[:1] + torch.randn(shape, generator=draw).to(value)

    if images is None:
        return [tree_map(lambda v, n=n: random_like(v, n), example) for n in ((3, 1) if dynamic_batch else (None,))]
    shape = tree_flatten(example)[0][0].shape
    if not isinstance(example, Tensor) or images.shape[1:] != shape[1:] or not len(images):
        raise DataError(
            f"images to compare on should be [N, {', '.join(map(str, shape[1:]))}], not {list(images.shape)}"
        )
    if dynamic_batch:
        return [images, images[:1]]
    size = len(example)
    if len(images) < size:
        raise DataError(f"the file takes {size} images at a time, but only {len(images)} were given to compare on")
    return [images[i : i + size] for i in range(0, len(images) - size + 1, size)]


PACKAGES: Mapping[str, str] = {"onnx": "", "onnxscript": "", "onnxruntime": ""}  # package -> extra: none
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

    Args:
        opset: ONNX opset; torch's own choice if not given.
        images: Images to compare on; the example with noise if not given.
        dynamic_batch: The file takes any number of images at a time; otherwise that of the example.

    Returns:
        The opset of the file, and the difference.
    """
    require(PACKAGES, "ONNX export")
    with evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn about themselves
        dynamic_batch = dynamic_batch and takes_any_batch(model, example)
        batches = comparison_batches(example, images, dynamic_batch)
        written = _write(export_program(model, example, dynamic_batch), path, opset)
        return written, _compare_file(model, path, batches)


def exported(model: nn.Module, example: Example, selection: SelectionForm = "gather") -> bytes:
    """The content of an ONNX file of a network, to time it, with channel selections in this form.

    torch's older exporter takes a fifteenth of the time of the one that writes files to keep, and the networks are
    equally fast. What it cannot write, or writes wrong, is left to the other one.
    """
    require(PACKAGES, "ONNX export")
    if selection == "convolution":
        model = with_convolutions(model, example)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if not isinstance(example, Tensor) or not _written_quickly(model, example, path):
            try:
                export_onnx(model, example, path)
            except ModelError:  # code that looks at the number of images can be written for one number
                export_onnx(model, example, path, dynamic_batch=False)
        return path.read_bytes()


def _written_quickly(model: nn.Module, example: Tensor, path: Path) -> bool:
    """Whether torch's older exporter could write the network, for any number of images, and exactly."""
    state = evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad()
    with state[0], state[1], state[2], state[3], warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        batches = comparison_batches(example, None, True)
        model = without_gaps(model, example)
        kind = {"input_names": ["input"], "dynamic_axes": {"input": {0: "batch"}}, "opset_version": OLDEST}
        try:
            torch.onnx.export(model, (to_device(example, device_of(model)),), path, dynamo=False, **kind)  # type: ignore[arg-type]
            if any(issubclass(each.category, TracerWarning) for each in warned):
                return False  # a branch on values, of which it writes only the one that the example takes
            _compare_file(model, path, batches)
        except Exception as error:  # noqa: BLE001  (the exporter, or the network's own code, may raise anything)
            logger.info("torch's older exporter cannot write %s: %s", type(model).__name__, error)
            return False
    return True


def _compare_file(model: nn.Module, path: Path, batches: list[Any]) -> Difference:
    """Compare a network with its ONNX file, which runs in onnxruntime."""
    session = open_session(path, torch.get_num_threads())
    return compare(model, lambda batch: [torch.from_numpy(np.asarray(o)) for o in run_session(session, batch)], batches)


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


def inputs_of(batch: Any, names: list[str]) -> list[Any]:
    """The arrays for inputs of these names: a tensor, or a tuple or dict of tensors, in the order of forward's."""
    if isinstance(batch, dict) and len(names) > 1:
        tensors = [batch[name] for name in names]
    else:
        tensors = [t for t in tree_flatten(batch)[0] if isinstance(t, Tensor)]
    return [np.ascontiguousarray(t.cpu().numpy()) for t in tensors]


def run_session(session: Any, batch: Any) -> list[Any]:
    names = [given.name for given in session.get_inputs()]
    outputs: list[Any] = session.run(None, dict(zip(names, inputs_of(batch, names), strict=True)))
    return outputs


def _write(program: Any, path: Path, opset: int | None) -> int:
    """Write a program in an opset (torch's own choice if not given); returns the opset of the file."""
    import onnx
    from onnx import version_converter

    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 1 <= opset <= newest:
        raise ModelError(f"the installed onnx knows opsets 1 to {newest}, not {opset}")
    direct = None if opset is None else max(opset, OLDEST)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        made = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=direct, **_names(program))
    except Exception as error:
        cause: BaseException = error  # torch's exporter wraps the original error in advice to its own developers
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        which = f" (opset {direct})" if direct else ""
        raise ModelError(f"ONNX cannot express this network{which}: {reason}") from error
    finally:
        logger.setLevel(level)
    proto = made.model_proto  # type: ignore[union-attr]
    # The first input's first axis is called `batch` wherever its symbol occurs, also in terms such as 2*s77.
    values = [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]
    sizes = [size for value in values for size in value.type.tensor_type.shape.dim if size.dim_param]
    symbol = sizes[0].dim_param if sizes else ""
    for size in sizes if symbol.isidentifier() else []:
        size.dim_param = re.sub(rf"\b{symbol}\b", "batch", size.dim_param)
    if opset is not None and opset < OLDEST:
        try:
            proto = version_converter.convert_version(proto, opset)
        except Exception as error:
            reason = str(error).strip().splitlines()[0].rpartition("failed: ")[2] if str(error).strip() else ""
            raise ModelError(
                f"this network cannot be written in ONNX opset {opset} ({reason}); use opset {OLDEST} or later"
            ) from error
    written = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if opset is not None and written != opset:
        raise ModelError(f"ONNX opset {opset} was requested, but torch's exporter can only write opset {written}")
    onnx.save(proto, path)
    return int(written)


def _names(program: Any) -> dict[str, Any]:
    """Names of inputs and outputs. Several inputs keep those that torch gives them: forward's arguments."""
    outputs = program.call_spec.out_spec
    places = outputs.unflatten(list(range(outputs.num_leaves)))  # the structure of the output, with numbers for tensors
    if isinstance(places, dict) and sorted(places.values(), key=str) == list(range(len(places))):
        names = [str(key) for key, _ in sorted(places.items(), key=lambda pair: pair[1])]
    else:
        names = [f"output_{number}" for number in range(outputs.num_leaves)]
    named = {"output_names": ["output"] if outputs.num_leaves == 1 else names}
    return {**named, "input_names": ["input"]} if len(program.graph_signature.user_inputs) == 1 else named


class OnnxFile(nn.Module):
    """The network in an ONNX file with one input of images. PyTorch cannot change it; calling it runs onnxruntime.

    Engines that read ONNX run the file as it is.
    """

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


# -- 8-bit integers


def one_by_one(batches: Iterable[Any], most: int = NUM_CALIBRATION) -> Iterator[Any]:
    """The first images of batches of inputs, each as a batch of one."""

    def images() -> Iterator[Any]:
        for batch in batches:
            for n in range(count_images(batch)):
                yield tree_map(lambda x, n=n: x[n : n + 1] if isinstance(x, Tensor) and x.ndim else x, batch)

    return islice(images(), most)


class QuantisedNetwork(nn.Module):
    """A network in the 8-bit integers of an engine, which calls run. Outputs have the structure of the network's.

    `images` are inputs of one image each, on which the ranges of activations are measured.
    """

    def __init__(self, model: nn.Module, example: Any, engine: str, images: Iterable[Any], threads: int = 1) -> None:
        super().__init__()
        found = ENGINES.find(engine)
        found.check_installed()
        if found.quantise is None:
            raise RunError(f"the engine {engine} computes in 32-bit numbers")
        with evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad():
            content = found.quantise(exported(model, example, found.selection), images)
            leaves, self._structure = tree_flatten(call(model, example))
        self._given = [leaf is not None for leaf in leaves]  # ONNX has no None
        self.prepared = found.open(content, threads)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        values = iter(self.prepared(kwargs or args))
        leaves = [torch.from_numpy(np.array(next(values))) if given else None for given in self._given]
        return tree_unflatten(leaves, self._structure)
