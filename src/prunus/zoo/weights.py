"""Load weights from a file: safetensors, or .pt / .th / .pth with plain tensors. Arbitrary pickles are refused."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from prunus.errors import FileError, ModelError
from prunus.zoo.names import check_weight_file

WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts store the tensors
LISTED = 8  # largest number of names in a message


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy the tensors of `path` into `model`, or raise a ModelError that lists those that do not fit."""
    stored, wanted = read_tensors(path), model.state_dict()
    problems = {
        # Old files do not have batch norm's counter of batches, which no computation uses.
        "missing in the file": [
            name for name in wanted if name not in stored and not name.endswith("num_batches_tracked")
        ],
        "extra in the file": [name for name in stored if name not in wanted],
        "with another shape": [
            f"{name} ({tuple(stored[name].shape)} in the file, {tuple(wanted[name].shape)} in the model)"
            for name in stored
            if name in wanted and stored[name].shape != wanted[name].shape
        ],
    }
    if any(problems.values()):
        lines = [f"{path} does not fit {type(model).__name__}:"]
        for title, names in problems.items():
            more = f", and {len(names) - LISTED} more" if len(names) > LISTED else ""
            if names:
                lines.append(f"  {title} ({len(names)}): {', '.join(names[:LISTED])}{more}")
        raise ModelError("\n".join(lines))
    model.load_state_dict(stored, strict=False)


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file by name, without wrappers and `module.` prefixes."""
    path = Path(path)
    check_weight_file(path)
    content = _read(path)
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise FileError(f"{path}: expected tensors by name, got {type(content).__name__}")
    strangers = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if strangers:
        raise FileError(f"{path}: expected only tensors; these are something else: {', '.join(strangers[:LISTED])}")
    tensors = {str(name): value for name, value in content.items()}
    while all(name.startswith("module.") for name in tensors):  # one prefix for each DataParallel around the model
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _read(path: Path) -> Any:
    kind = "safetensors" if path.suffix == ".safetensors" else "torch"
    try:
        return load_file(path) if kind == "safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileError(
            f"{path}: has more than plain tensors, or is damaged; it was not loaded: a pickle can run any code. "
            f"Save only the state_dict, preferably as .safetensors. (torch's message: {str(error).splitlines()[0]})"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise FileError(f"{path}: is not a complete {kind} file ({type(error).__name__}: {error})") from error
