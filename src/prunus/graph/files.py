"""Pruned models on disk: a plan (JSON) and tensors (safetensors), without pickle and written atomically."""

from __future__ import annotations

import copy
import dis
import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prunus.errors import FileError, PlanError, PrunusError
from prunus.graph.channel_graph import ChannelGraph, prune, trace
from prunus.graph.compare import copied, outputs_of
from prunus.graph.multihead import source_of
from prunus.graph.plan import Plan, check_origin, example_from, original_of
from prunus.graph.surgery import copy_sharing
from prunus.graph.traced import as_call, check_network, methods_of, named_modules, names_in_code
from prunus.util.files import atomic, write_atomically
from prunus.util.state import ModuleState, module_state_kept, overrides_train, undisturbed

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
    with module_state_kept(model, weights=True) if overrides_train(model) else nullcontext():
        if overrides_train(model):  # eval mode may merge weights, which `load` would merge again
            model.train()
        tensors, same, extra = _state(model)
    _check_that_it_loads(model, plan, folder)
    with atomic(folder / MODEL_FILE) as path:
        try:
            # One key only: safetensors writes several in no fixed order, and equal models should give equal files.
            notes = {
                "plan": plan.fingerprint,
                "kept": _kept(plan),
                "shared": same,
                "digest": digest_of(tensors),
                **({"extra": extra} if extra else {}),
            }
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
    tensors: dict[str, Any] = {**read_tensors(folder / MODEL_FILE), **_notes(folder / MODEL_FILE).get("extra", {})}
    if _notes(folder / MODEL_FILE).get("kept", _kept(plan)) != _kept(plan):  # the shapes may be the same
        raise FileError(
            f"{folder / MODEL_FILE} does not belong to {folder / PLAN_FILE}: it was saved with a plan that keeps other "
            "channels. Use both files of one folder."
        )
    if graph is None:
        example = example_of(plan, model, folder / PLAN_FILE)
        pruned = prune(trace(model, example, **plan.ways), plan)
    else:
        if model is not graph.model and model is not source_of(graph.model):
            raise PlanError("expected load(folder, model, graph=graph) with the graph of this model, not of another")
        pruned = prune(graph, plan, check=False)
    expected = pruned.state_dict()
    problems = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "extra": sorted(tensors.keys() - expected.keys()),
        "of another shape": sorted(
            f"{n} {tuple(tensors[n].shape)} instead of {tuple(expected[n].shape)}"
            for n in expected.keys() & tensors.keys()
            if isinstance(expected[n], Tensor) and tensors[n].shape != expected[n].shape
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
    if overrides_train(pruned):
        pruned.train()
    pruned.load_state_dict(state)
    if overrides_train(pruned):
        pruned.train(model.training)
    return pruned


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; shared tensors under each of their names."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
        notes = _notes(path)
        if notes.get("digest", "") not in ("", digest_of(tensors)):
            raise FileError(f"{path} is damaged: its tensors are not those that were saved. Copy or save it again")
        return tensors | {name: tensors[first] for name, first in notes.get("shared", {}).items()}
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist") from error
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise FileError(f"{path} is not a complete safetensors file: {error}") from error


def _notes(path: Path) -> dict[str, Any]:
    """What `save` wrote next to the tensors; empty if another program wrote the file."""
    with safe_open(path, framework="pt") as file:
        return dict(json.loads((file.metadata() or {}).get(NOTES, "{}")))


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors and their names, in any order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        total.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _kept(plan: Plan) -> str:
    """A hash of the channels that a plan keeps."""
    text = json.dumps({name: list(kept) for name, kept in plan.keep.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
    """Each tensor of the state dict once; for shared tensors: name -> first name; and what is no tensor."""
    tensors: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    extra: dict[str, Any] = {}
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):  # of get_extra_state
            try:
                extra[name] = json.loads(json.dumps(tensor))
            except (TypeError, ValueError):
                extra[name] = None
            if extra[name] != tensor:
                raise FileError(f"{name} of the state dict is a {type(tensor).__name__} that JSON cannot hold")
            continue
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            same[name] = first[key]
        else:
            first[key] = name
            tensors[name] = tensor.detach().cpu().contiguous().clone()
    return tensors, same, extra


def example_of(plan: Plan, model: nn.Module, path: Path) -> Any:
    """Zeros of the shapes that the plan was made with, in the precision and on the device of the model."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    try:
        return example_from(plan.example, like)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"{path}: the example {plan.example!r:.80} cannot be built: {error}") from error


def _check_that_it_loads(model: nn.Module, plan: Plan, path: Path) -> None:
    """FileError if `load` could not build this model again: from a new network of the class, on an example of zeros.

    The network that was pruned takes the part of the new one, with other weights, and without what forward remembers.
    """
    for name, module in named_modules(model):
        if "forward" in module.__dict__:
            raise FileError(
                f"{type(module).__name__} {name} has a forward of its own, which is not that of its class: prunus.load "
                "could not build it again. Take the patch off before you save, or make it a class"
            )
    example = example_of(plan, model, path)
    original = original_of(model, plan)
    if original is None:
        return
    with undisturbed(original):
        new = copy_sharing(original)
        generator = torch.Generator().manual_seed(0)
        for parameter in new.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and parameter.std() > 0:
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.data = parameter.mean() + parameter.std() * noise
        forget(new, example)
        try:
            pruned = prune(trace(new, example, **plan.ways), plan, check=False)
        except PrunusError as error:
            raise FileError(
                f"{type(model).__name__} is not saved, because prunus.load could not build it again: {error}. A new "
                "network of the class, with other weights and an example of zeros, must have the same units"
            ) from error
        missing = {n: tuple(t.shape) for n, t in model.state_dict().items() if isinstance(t, Tensor)}
        built = {n: tuple(t.shape) for n, t in pruned.state_dict().items() if isinstance(t, Tensor)}
        if built != missing:
            raise FileError(
                f"{type(model).__name__} is not saved, because prunus.load would build other tensors: "
                f"{sorted(dict(missing.items() ^ built.items()))[:5]}"
            )


@torch.no_grad()
def forget(model: nn.Module, example: Any) -> None:
    """Remove what forward has left on the modules at earlier calls, where the model runs without it."""
    assigned: dict[tuple[nn.Module, str], Any] = {}  # by the last run, which leaves the model as it was
    set_attribute = nn.Module.__setattr__

    def note(module: nn.Module, name: str, value: Any) -> None:
        assigned[module, name] = value
        set_attribute(module, name, value)

    def runs() -> bool:
        assigned.clear()
        nn.Module.__setattr__ = note  # type: ignore[method-assign, assignment]
        try:
            outputs_of(model, example)
        except Exception:  # noqa: BLE001  whatever the model's own code raises
            return False
        finally:
            nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign]
        return True

    if not runs():
        return
    hooked = ("training", "weight", "bias")  # hooks compute weights
    for module, name in [(m, n) for m, n in assigned if n in m.__dict__ and n not in hooked]:
        value = module.__dict__.pop(name)
        for other in (None, type(value)() if isinstance(value, list | dict | set | deque) else None, value):
            if runs():
                break
            module.__dict__[name] = other
    for _, module in named_modules(model):
        for name in _set_by_code(module):
            value = module.__dict__.pop(name)
            for absent in ({}, {name: None}):  # forward sets it again, to the same, if it is missing or None
                module.__dict__.update(absent)
                again = assigned.get((module, name)) if runs() else None
                if type(again) is type(value) and getattr(again, "shape", again) == getattr(value, "shape", value):
                    break
            else:
                module.__dict__[name] = value
    for container in _written(model, example):
        had = copy.copy(container)
        container.clear()
        if not runs():
            (container.update if isinstance(container, dict | set) else container.extend)(had)
    for _, module in named_modules(model):
        for name in [*module._buffers] if names_in_code(module, "register_buffer") else ():
            buffer = module._buffers.pop(name)
            if not runs():
                module._buffers[name] = buffer


def _set_by_code(module: nn.Module) -> list[str]:
    """Numbers, tuples and tensors among the attributes that methods assign, other than those that set up the module."""
    codes = [method.__code__ for method in methods_of(type(module)) if "init" not in method.__code__.co_name]
    names = {step.argval for code in codes for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
    kinds = (int, float, str, tuple, Tensor)
    return sorted(name for name in names if name != "training" and isinstance(module.__dict__.get(name), kinds))


def _written(model: nn.Module, example: Any) -> list[Any]:
    """The lists, dicts and sets of the modules into which forward writes."""
    own = {id(part) for _, module in named_modules(model) for part in (vars(module), module._buffers)}
    state = ModuleState(model)
    args, kwargs = as_call(copied(example))
    with suppress(Exception):
        model(*args, **kwargs)
    written = [live for live in state.written() if isinstance(live, list | dict | set | deque) and id(live) not in own]
    state.restore()
    return written
