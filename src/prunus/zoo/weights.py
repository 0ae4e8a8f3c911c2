"""Load weights from a file: safetensors, or tensors that torch saved. Nothing else in a file is made or run.

A file may come from a training script or from Lightning (.ckpt): its tensors may lie under a key, and their names may
begin with module. (DataParallel), model. (Lightning) or have _orig_mod. (torch.compile).
"""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from prunus.errors import FileError, ModelError
from prunus.zoo.names import check_weight_file

logger = logging.getLogger(__name__)

WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts store the tensors
MODULES = ("ema", "model")  # keys under which ultralytics stores a whole network; the averaged one first
COMPILED = "_orig_mod."  # torch.compile puts it before the names of what it wraps
PREFIXES = ("", "module.", "model.", "model.module.", "module.model.", "net.", "network.")  # these before all others
COUNTER = "num_batches_tracked"  # of batch norms; old files do not have it, and no computation uses it
LISTED = 8  # largest number of names in a message


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy the tensors of `path` into `model`, or raise a ModelError that lists those that do not fit."""
    stored, wanted = tensors_for(model, path), model.state_dict()
    problems = {
        "missing in the file": [name for name in wanted if name not in stored and not name.endswith(COUNTER)],
        "extra in the file": [name for name in stored if name not in wanted],
        "with another shape": [
            f"{name} ({tuple(stored[name].shape)} in the file, {tuple(wanted[name].shape)} in the model)"
            for name in stored
            if name in wanted and stored[name].shape != wanted[name].shape
        ],
    }
    if any(problems.values()):
        lines = [f"  {title} ({len(names)}): {_listed(names)}" for title, names in problems.items() if names]
        raise ModelError("\n".join([f"{path} does not fit {type(model).__name__}:", *lines]))
    model.load_state_dict(stored, strict=False)


def tensors_for(model: nn.Module, path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file by the names that they have in `model`, as far as these can be found."""
    tensors, wanted = read_tensors(path), model.state_dict()
    needed = {name for name in wanted if not name.endswith(COUNTER)}
    if not needed or needed <= tensors.keys():
        return tensors
    tensors = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    one = min(needed)
    prefixes = {name.removesuffix(one) for name in tensors if name.endswith(one)}
    fitting = [prefix for prefix in prefixes if all(prefix + name in tensors for name in needed)]
    known = [prefix for prefix in PREFIXES if prefix in fitting]
    if known or len(fitting) == 1:
        prefix = (known or fitting)[0]
        others = [name for name in tensors if not name.startswith(prefix)]
        if others:
            logger.warning(
                "%s: took the tensors whose names begin with %r; not used: %s", path, prefix, _listed(others)
            )
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if fitting:
        raise ModelError(
            f"{path}: has the weights of {type(model).__name__} more than once, under {_listed(sorted(fitting))}: save "
            "those of one network"
        )
    # Another network's: without the prefix, the message that lists what does not fit can be read.
    while shared := next((p for p in PREFIXES[1:] if all(name.startswith(p) for name in tensors)), None):
        tensors = {name.removeprefix(shared): tensor for name, tensor in tensors.items()}
    return tensors


def classes_of(model: nn.Module, path: str | Path, classes: int) -> int:
    """The number of classes that a file's tensors are for. `model` is built for `classes`.

    If tensors do not fit, they all have another first dimension than `classes`: that of the file's network.
    """
    stored, wanted = tensors_for(model, path), model.state_dict()
    shapes = {(tuple(wanted[n].shape), tuple(stored[n].shape)) for n in wanted if n in stored}
    different = [(mine, other) for mine, other in shapes if mine != other]
    numbers = {other[0] if mine[:1] == (classes,) and mine[1:] == other[1:] else None for mine, other in different}
    return numbers.pop() or classes if len(numbers) == 1 else classes


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file by name, without the key under which they may lie."""
    path = Path(path)
    check_weight_file(path)
    content = _read(path)
    wrapped = content if isinstance(content, Mapping) else {}
    for module in (*(wrapped.get(key) for key in MODULES), content):
        if tensors := _module_tensors(module):  # a pickled network: its tensors are read, its class is not
            return tensors
    content = next((wrapped[key] for key in WRAPPERS if isinstance(wrapped.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not content:
        what = "no tensors" if isinstance(content, Mapping) else type(content).__name__
        raise FileError(f"{path}: expected tensors by name, got {what}: save the network's state_dict()")
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise FileError(f"{path}: expected only tensors; these are something else: {_listed(others)}")
    return {str(name): value for name, value in content.items()}


def _module_tensors(stored: Any, prefix: str = "") -> dict[str, Tensor]:
    """The parameters and buffers of a module that was pickled whole, by name; empty if it is something else.

    Nothing of its class was imported: `stored` is a stand-in that has the module's attributes.
    """
    parts = getattr(stored, "__dict__", {})
    if isinstance(stored, Tensor) or not isinstance(parts.get("_modules"), Mapping):
        return {}
    fleeting = parts.get("_non_persistent_buffers_set") or ()
    own = {**(parts.get("_parameters") or {}), **(parts.get("_buffers") or {})}
    tensors = {prefix + name: t.detach() for name, t in own.items() if isinstance(t, Tensor) and name not in fleeting}
    for name, child in parts["_modules"].items():
        tensors |= _module_tensors(child, f"{prefix}{name}.")
    return tensors


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{', '.join(names[:LISTED])}{more}"


class _StandIn:
    """In the place of every class and function that a file names and that is none of torch's tensors: an empty dict."""

    def __new__(cls, *_args: Any) -> Any:
        return OrderedDict()


def _read(path: Path) -> Any:
    kind = "safetensors" if path.suffix == ".safetensors" else "torch"
    try:
        if kind == "safetensors":
            return load_file(path)
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(path) if is_zipfile(path) else []
        with torch.serialization.safe_globals([(_StandIn, name) for name in foreign]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileError(
            f"{path}: has more than plain tensors, or is damaged; it was not loaded: a pickle can run any code. "
            "Save only the state_dict, preferably as .safetensors; of a YOLO: "
            "torch.save(YOLO('best.pt').model.state_dict(), 'weights.pt'). "
            f"(torch's message: {str(error).splitlines()[0]})"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, TypeError, KeyError, BadZipFile) as error:
        raise FileError(f"{path}: is not a complete {kind} file ({type(error).__name__}: {error})") from error
