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

from prunus.errors import FileError, PlanError
from prunus.graph.channel_graph import ChannelGraph, prune, trace
from prunus.graph.plan import Plan, check_origin
from prunus.graph.traced import check_network
from prunus.graph.units import Streams
from prunus.util.files import atomic, write_atomically

PLAN_FILE = "plan.json"
MODEL_FILE = "model.safetensors"
NOTES = "prunus"  # key in the metadata of the tensors


def save(model: nn.Module, plan: Plan, folder: str | Path) -> None:
    """Write a pruned model, and the plan that gives it from the original: `plan.json` and `model.safetensors`.

    Each file is written atomically: an existing file is replaced only when the new one is complete.

    Args:
        model: the pruned network, as `prune` returned it, or trained or repaired since.
        plan: the plan from the original network to it.
        folder: where to write; it is made if it does not exist.

    Raises:
        PlanError: the model was cut by another plan.
        FileError: the files cannot be written.
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


def load(folder: str | Path, model: nn.Module, *, graph: ChannelGraph | None = None) -> nn.Module:
    """The pruned model that `save` wrote.

    The result is in the mode of `model`, which is training mode in a new model: call .eval() before it predicts.

    Args:
        folder: the folder that `save` wrote to.
        model: a new model of the original class; it is not changed.
        graph: the graph of `model`, if it has been traced and the plan was verified on it when the network was pruned.
            Then nothing is traced or run again; that the plan fits is still proven on labels.

    Raises:
        FileError: a file is missing or damaged, or the two files do not belong together or to the model.
        PlanError: the plan is for another network.
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
    if graph is None:
        streams: Streams = "coupled" if plan.streams == "coupled" else "select"
        pruned = prune(trace(model, example_of(plan, model, folder / PLAN_FILE), streams), plan)
    else:
        if graph.model is not model:
            raise PlanError("expected load(folder, model, graph=graph) with the graph of this model, not of another")
        pruned = prune(graph, plan, check=False)
    expected = pruned.state_dict()
    problems = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "extra": sorted(tensors.keys() - expected.keys()),
        "of another shape": sorted(
            f"{n} {tuple(tensors[n].shape)} instead of {tuple(expected[n].shape)}"
            for n in expected.keys() & tensors.keys()
            if tensors[n].shape != expected[n].shape
        ),
    }
    if any(problems.values()):
        few = {what: ", ".join(names[:5]) + (" ..." if len(names) > 5 else "") for what, names in problems.items()}
        raise FileError(
            f"{folder / MODEL_FILE} does not belong to {folder / PLAN_FILE} and {type(model).__name__}: "
            + "".join(f"{what}: {names}; " for what, names in few.items() if names)
        )
    # Modules with versioned state expect the version that they were saved with: that of this class.
    state = OrderedDict(tensors)
    state._metadata = expected._metadata  # type: ignore[attr-defined]
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
