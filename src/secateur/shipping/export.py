"""A model as a file that runs without secateur, checked after it is written. No file holds a pickle."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from secateur.base.atomic_files import atomic
from secateur.base.batches import device_of
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.files import read_tensors, save
from secateur.channels.plan import Plan
from secateur.channels.tracing import Example, as_call
from secateur.errors import DataError, FileError, ModelError
from secateur.shipping.fold import fold_batch_norm, relative_error
from secateur.shipping.sessions import onnx_session, run_session

log = logging.getLogger(__name__)

Format = Literal["onnx", "pt2", "safetensors"]
FORMATS = ("onnx", "pt2", "safetensors")
OLDEST = 18  # the operator set that torch's exporter writes; older ones are made from it
TOLERANCE = 1e-3  # of the largest output: other kernels sum in another order


@dataclass(frozen=True)
class Exported:
    """What was written, and how well it does."""

    path: Path
    format: Format
    bytes: int
    error: float  # largest difference to PyTorch's outputs, of the largest output
    images: int  # that were compared
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
) -> Exported:
    """Write `model` to `path`, read it back, run it, and compare it with PyTorch. `model` is untouched.

    format: "onnx" (run by onnxruntime), "pt2" (torch.export; `torch.export.load(path).module()`), or "safetensors"
        (tensors only; with `plan` a folder for `secateur.load`). From the path's suffix if not given.
    fold_bn: batch norms become part of the layers in front of them, see `fold_batch_norm`.
    opset: of ONNX; torch's own choice if not given.
    images: to compare on, as the network takes them; random ones if not given.
    dynamic_batch: any number of images at a time; otherwise that of the example.
    """
    path = Path(path)
    kind = _format(path, format, plan)
    if opset is not None and kind != "onnx":
        raise ModelError(f"opset is for onnx only, and the format is {kind}")
    if kind == "safetensors":
        return _tensors(model, path, fold_bn, plan, example)
    if fold_bn:
        model = fold_batch_norm(model, example)
    path.parent.mkdir(parents=True, exist_ok=True)
    with evaluating(model), generators_kept(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn about themselves
        call = _example_call(example, dynamic_batch)
        batches = _to_compare(example, images, dynamic_batch)
        with atomic(path) as part:
            program = _program(model, call, dynamic_batch)
            if kind == "onnx":
                opset = _write_onnx(program, part, opset)
                error = _compare_onnx(model, batches, part)
            else:
                _write_pt2(program, part)
                error = _compare_pt2(model, batches, part)
            if not error <= TOLERANCE:
                raise ModelError(f"{path} was not written: its output is off by {error:.1e} of the largest value")
    count = sum(len(tree_flatten(b)[0][0]) for b in batches)
    return Exported(path, kind, path.stat().st_size, error, count, opset)


def _format(path: Path, format: Format | None, plan: Plan | None) -> Format:
    suffix = path.suffix.removeprefix(".")
    found = format or ("safetensors" if plan is not None else suffix)
    if found not in FORMATS:
        raise ModelError(
            f"format should be one of {', '.join(FORMATS)}, by name or as the suffix of {path}; not {found!r}"
        )
    return cast(Format, found)


# ------------------------------------------------------------------------------------------------ torch.export and onnx


def _example_call(example: Example, dynamic: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example's arguments; two images if their number is to be free, as torch takes a 1 for a constant."""
    args, kwargs = as_call(example)
    if dynamic:
        double = lambda v: torch.cat([v[:1], v[:1]]) if isinstance(v, Tensor) and v.dim() else v  # noqa: E731
        args, kwargs = tree_map(double, args), tree_map(double, kwargs)
    return args, kwargs


def _program(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], dynamic: bool) -> Any:
    args, kwargs = call
    shapes = None
    if dynamic:
        batch = torch.export.Dim("batch")
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        shapes = {name: {0: batch} if isinstance(v, Tensor) and v.dim() else None for name, v in given.items()}
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:
        said = next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)
        hint = " With dynamic_batch=False it may work: the file then takes one number of images." if dynamic else ""
        raise ModelError(f"torch.export cannot follow {type(model).__name__}: {said}.{hint}") from error


def _write_pt2(program: Any, path: Path) -> None:
    program.example_inputs = None  # torch would pickle them
    with path.open("wb") as file:
        torch.export.save(program, file)
    with zipfile.ZipFile(path) as archive:
        configs = [json.loads(archive.read(n)) for n in archive.namelist() if n.endswith("_config.json")]
        pickled = [k for c in configs for k, entry in c["config"].items() if entry["use_pickle"]]
        samples = [n for n in archive.namelist() if "sample_inputs" in n and archive.getinfo(n).file_size]
    if pickled or samples:
        raise ModelError(f"torch.export would pickle {', '.join([*pickled, *samples][:5])}; use onnx or safetensors")


def _write_onnx(program: Any, path: Path, opset: int | None) -> int:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not 1 <= opset <= newest:
        raise ModelError(f"the installed onnx knows opsets 1 to {newest}, not {opset}")
    wanted = opset if opset is None else max(opset, OLDEST)
    with _quiet("torch.onnx"):
        try:
            made = torch.onnx.export(program, (), dynamo=True, verbose=False, opset_version=wanted)
        except Exception as error:
            which = f" (opset {wanted})" if wanted else ""
            raise ModelError(f"ONNX cannot express this network{which}: {_first_cause(error)}") from error
    proto = made.model_proto  # type: ignore[union-attr]
    if opset is not None and opset < OLDEST:
        proto = _older(onnx, proto, opset)
    found = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if opset is not None and found != opset:
        raise ModelError(f"ONNX opset {opset} was asked for, and torch's exporter can only write opset {found}")
    onnx.save(proto, path)
    return int(found)


def _first_cause(error: BaseException) -> str:
    """What went wrong at the bottom, in one line: torch's exporter wraps it in advice to its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _older(onnx: Any, proto: Any, opset: int) -> Any:
    from onnx import version_converter

    try:
        return version_converter.convert_version(proto, opset)
    except Exception as error:
        said = str(error).strip().splitlines()[0].rpartition("failed: ")[2] if str(error).strip() else ""
        raise ModelError(
            f"this network cannot be written in ONNX opset {opset} ({said}); opset {OLDEST} or later can express it"
        ) from error


class _quiet:
    """A logger that says nothing below errors for a while."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def __enter__(self) -> None:
        self._level = self._logger.level
        self._logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)


# ------------------------------------------------------------------------------------------------ checked after writing


def _to_compare(example: Example, images: Tensor | None, dynamic: bool) -> list[Any]:
    """Batches to run both on: the given images, or random ones, one image and several where the number is free."""
    if images is not None:
        shape = tree_flatten(example)[0][0].shape
        if not isinstance(example, Tensor) or images.shape[1:] != shape[1:] or not len(images):
            raise DataError(
                f"images to compare on should be [N, {', '.join(map(str, shape[1:]))}], not {list(images.shape)}"
            )
        if not dynamic:
            size = len(example)
            if len(images) < size:
                raise DataError(f"the file takes {size} images at a time, and {len(images)} were given to compare on")
            return [images[i : i + size] for i in range(0, len(images) - size + 1, size)]
        return [images, images[:1]]
    draw = torch.Generator().manual_seed(0)

    def like(value: Any, count: int | None) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        shape = (count or len(value), *value.shape[1:])
        if not value.is_floating_point():
            return value[:1].expand(shape).contiguous()
        return torch.randn(shape, generator=draw).to(value)

    return [tree_map(lambda v, n=n: like(v, n), example) for n in ((3, 1) if dynamic else (None,))]


def _compare_onnx(model: nn.Module, batches: list[Any], path: Path) -> float:
    try:
        session = onnx_session(path)
    except Exception as error:
        raise ModelError(f"onnxruntime does not take the file: {str(error).strip().splitlines()[0]}") from error
    return max(
        relative_error(_outputs(model, batch), [torch.from_numpy(np.asarray(o)) for o in run_session(session, batch)])
        for batch in batches
    )


def _compare_pt2(model: nn.Module, batches: list[Any], path: Path) -> float:
    with path.open("rb") as file:
        loaded = torch.export.load(file).module()
    return max(relative_error(_outputs(model, batch), _outputs(loaded, batch)) for batch in batches)


def _outputs(model: nn.Module, batch: Any) -> list[Any]:
    args, kwargs = as_call(batch)
    home = device_of(model)
    args, kwargs = (tree_map(lambda v: v.to(home) if isinstance(v, Tensor) else v, part) for part in (args, kwargs))
    return [o.cpu() if isinstance(o, Tensor) else o for o in tree_flatten(model(*args, **kwargs))[0]]


# ------------------------------------------------------------------------------------------------ tensors


def _tensors(model: nn.Module, path: Path, fold_bn: bool, plan: Plan | None, example: Example) -> Exported:
    if plan is not None:
        if fold_bn:
            raise ModelError("a model with folded batch norms is not of its class any more: load cannot read it back")
        save(model, plan, path)
        file = path / "model.safetensors"
    else:
        from safetensors.torch import save_model

        model = fold_batch_norm(model, example) if fold_bn else model
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as part:
            save_model(model, str(part))
        file = path
    written, own = read_tensors(file), model.state_dict()
    if any(not torch.equal(tensor, own[name].cpu()) for name, tensor in written.items()):
        raise FileError(f"{file} does not hold what was written to it; check the disk")
    return Exported(path, "safetensors", file.stat().st_size, 0.0, 0)
