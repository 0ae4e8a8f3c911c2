"""Pruned models on disk: a plan (JSON) and tensors (safetensors), without pickle and written atomically."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunus.errors import FileError
from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan, check_origin
from prunus.graph.traced import check_network
from prunus.graph.units import Streams
from prunus.util.files import atomic, write_atomically

PLAN_FILE = "plan.json"
MODEL_FILE = "model.safetensors"
NOTES = "prunus"  # key in the metadata of the tensors


def save(model: nn.Module, plan: Plan, folder: str | Path) -> None:
    """Write a pruned model, and the plan that gives it from the original: `plan.json` and `model.safetensors`.

    Raises PlanError if the model was cut by another plan. Each file is written atomically: an existing file is replaced
    only when the new one is complete.
    """
    check_origin(model, plan)
    if not isinstance(folder, str | Path):
        raise FileError(f"expected save(model, plan, folder) with the path of a folder, got {type(folder).__name__}")
    folder = Path(folder)
    tensors, same = _state(model)
    with atomic(folder / MODEL_FILE) as path:
        try:
            # One key only: safetensors writes several in no fixed order, and equal models should give equal files.
            notes = {"plan": plan.fingerprint, "kept": _kept(plan), "shared": same}
            save_file(tensors, path, metadata={NOTES: json.dumps(notes)})
        except SafetensorError as error:  # safetensors raises this if the disk is full
            raise OSError(str(error)) from error
    write_atomically(folder / PLAN_FILE, plan.to_json().encode())


def load(folder: str | Path, model: nn.Module) -> nn.Module:
    """The pruned model that `save` wrote. `model` is a new model of the original class; it is not changed.

    The result is in the mode of `model`, which is training mode in a new model: call .eval() before it predicts.
    """
    if not isinstance(folder, str | Path):
        raise FileError(f"expected load(folder, model) with the path of a folder, got {type(folder).__name__}")
    check_network(model)
    folder = Path(folder)
    plan = Plan.load(folder / PLAN_FILE)
    tensors = read_tensors(folder / MODEL_FILE)
    if _notes(folder / MODEL_FILE).get("kept", _kept(plan)) != _kept(plan):  # the shapes may be the same
        raise FileError(
            f"{folder / MODEL_FILE} does not belong to {folder / PLAN_FILE}: it was saved with a plan that keeps other "
            "channels. Use both files of one folder."
        )
    streams: Streams = "coupled" if plan.streams == "coupled" else "select"
    pruned = prune(trace(model, example_of(plan, model, folder / PLAN_FILE), streams), plan)
    own = pruned.state_dict()
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    other = [
        f"{n} {tuple(tensors[n].shape)} instead of {tuple(own[n].shape)}"
        for n in own.keys() & tensors.keys()
        if tensors[n].shape != own[n].shape
    ]
    if missing or extra or other:
        raise FileError(
            f"{folder / MODEL_FILE} does not belong to {folder / PLAN_FILE} and {type(model).__name__}: "
            f"{_few('missing', missing)}{_few('extra', extra)}{_few('of another shape', sorted(other))}"
        )
    # Modules with versioned state expect the version that they were saved with: that of this class.
    state = OrderedDict(tensors)
    state._metadata = own._metadata  # type: ignore[attr-defined]
    pruned.load_state_dict(state)
    return pruned


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; shared tensors under each of their names."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
        return tensors | {name: tensors[first] for name, first in _notes(path).get("shared", {}).items()}
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist") from error
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is not a complete safetensors file: {error}") from error


def _notes(path: Path) -> dict[str, Any]:
    """What `save` wrote next to the tensors; empty if another program wrote the file."""
    with safe_open(path, framework="pt") as file:
        return dict(json.loads((file.metadata() or {}).get(NOTES, "{}")))


def _kept(plan: Plan) -> str:
    """A hash of the channels that a plan keeps."""
    text = json.dumps({name: list(kept) for name, kept in plan.keep.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor of the state dict once, and for shared tensors: name -> first name."""
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            same[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor.detach().cpu().contiguous().clone()
    return tensors, same


def example_of(plan: Plan, model: nn.Module, path: Path) -> Any:
    """Zeros of the shapes that the plan was made with, in the precision and on the device of the model."""
    tensor = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))

    def build(entry: Any) -> Any:
        if isinstance(entry, dict) and set(entry) == {"shape", "dtype"}:
            dtype = getattr(torch, str(entry["dtype"]), None)
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"{entry['dtype']!r} is no type of torch's tensors")
            dtype = tensor.dtype if dtype.is_floating_point else dtype
            return torch.zeros([int(n) for n in entry["shape"]], dtype=dtype, device=tensor.device)
        return entry

    try:
        return tree_map(build, plan.example, is_leaf=lambda e: isinstance(e, dict) and set(e) == {"shape", "dtype"})
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"{path}: the example {plan.example!r:.80} cannot be built: {error}") from error


def _few(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}; " if names else ""
