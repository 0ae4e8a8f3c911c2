"""The state of a training run after an epoch, in one safetensors file that is written atomically.

Tensors: `model.NAME` (the state_dict), `momentum.NAME` (SGD's buffer for that parameter) and, if a run has them,
`best.NAME` (the state_dict of the best epoch) and `average.NAME` (that of the averaged weights). The file's own
metadata carries the rest as JSON: the run's `identity` and its history so far. Weights and history are replaced
together, so they always agree. Random state is not saved, because each epoch draws from generators seeded by
(seed, epoch).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from prunus.errors import FileError, RunError
from prunus.tasks.evaluate import Evaluation
from prunus.util.files import write_atomically
from prunus.util.typed_json import from_data, to_data

NAME = "checkpoint.safetensors"
FORMAT = "prunus training checkpoint 1"
OTHERS = ("best", "average")  # state_dicts besides the model's own


@dataclass(frozen=True)
class State:
    """What a checkpoint holds besides the tensors, as JSON values."""

    identity: Mapping[str, Any]
    history: list[dict[str, Any]]
    scaler: Mapping[str, Any]  # state of the loss scale of fp16; empty otherwise
    best: Mapping[str, Any] = field(default_factory=dict)  # number and accuracy of the best epoch, if it is to be kept
    weights: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # other state_dicts, by OTHERS


def save_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, state: State) -> None:
    """Write the checkpoint of `folder`; the previous one is replaced atomically."""
    tensors = {f"model.{name}": _detached(tensor) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if buffer is not None:
            tensors[f"momentum.{name}"] = _detached(buffer)
    for kind, weights in state.weights.items():
        tensors |= {f"{kind}.{name}": _detached(tensor) for name, tensor in weights.items()}
    record = {"identity": state.identity, "history": state.history, "scaler": state.scaler, "best": state.best}
    content = save(tensors, metadata={"format": FORMAT, "state": json.dumps(record)})
    write_atomically(folder / NAME, content)


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> State | None:
    """Load the checkpoint's tensors into `model` and `optimizer`; returns None if there is no checkpoint.

    Raises RunError if it belongs to a run with other settings, FileError if the file is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return None
    tensors, state = _read(path)
    _same_run(path, state.identity, identity)
    # The identity includes the names of all tensors, so only a damaged file can lack some.
    try:
        model.load_state_dict(_part(tensors, "model"))
    except RuntimeError as error:
        raise FileError(f"{path} does not fit the model: {error}") from error
    for name, parameter in model.named_parameters():
        if f"momentum.{name}" in tensors:
            # empty_like keeps the parameter's device and memory order (channels last)
            buffer = torch.empty_like(parameter, requires_grad=False).copy_(tensors[f"momentum.{name}"])
            optimizer.state[parameter]["momentum_buffer"] = buffer
    return state


def digest(model: nn.Module | None) -> str | None:
    """SHA-256 of a model's weights, buffers and their names."""
    if model is None:
        return None
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        total.update(_detached(tensor).view(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _detached(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU: safetensors accepts no views and no shared memory (tied parameters)."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _part(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The tensors called KIND.NAME, by NAME."""
    return {name[len(kind) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}


def _read(path: Path) -> tuple[dict[str, Tensor], State]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        if metadata.get("format") != FORMAT:
            raise FileError(f"{path} is not a training checkpoint of this version; use another folder")
        return tensors, State(**json.loads(metadata["state"]), weights={kind: _part(tensors, kind) for kind in OTHERS})
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise FileError(f"{path} is damaged ({error}); delete it to start again") from error


def _same_run(path: Path, kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(wanted))  # tuples become lists, as they did in the file
    other = [key for key in {**kept, **wanted} if kept.get(key) != wanted.get(key)]
    if other:
        shown = [(key, _short(kept.get(key)), _short(wanted.get(key))) for key in other]
        differences = ", ".join(f"{key} was {before} and is now {now}" for key, before, now in shown)
        raise RunError(
            f"{path} belongs to another run: {differences}. Use the same settings to continue it, or another folder"
        )


def _short(value: Any) -> str:
    """A value in an error message; of a digest, its beginning."""
    return f"{value[:8]}..." if isinstance(value, str) and len(value) == 64 else repr(value)


METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Epoch:
    """One epoch: mean loss and quality over its training batches during training, and the held-out quality."""

    number: int  # from 1
    lr: float  # of the last step
    loss: float
    quality: float | None  # if it is a mean over images
    holdout: Evaluation | None
    seconds: float  # without the held-out evaluation
    images_per_second: float


def write_history(folder: Path, history: Sequence[Epoch]) -> None:
    """Write all epochs so far to metrics.jsonl. The file is small, and rewriting it keeps it correct after a kill."""
    lines = [json.dumps(_finite(to_data(epoch)), allow_nan=False) for epoch in history]
    write_atomically(folder / METRICS_FILE, "".join(f"{line}\n" for line in lines).encode())


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


Weights = dict[str, Tensor]


class BestEpoch:
    """Holds the weights of the best epoch so far; the network before the first is epoch 0. Of equal ones, the last."""

    def __init__(self, model: nn.Module, start: Evaluation) -> None:
        self._model, self.start = model, start
        self.number, self.quality, self.weights = 0, start, _copied(model)

    def see(self, history: Sequence[Epoch]) -> None:
        """Take the weights of the epoch that has just ended, if it is the best."""
        last = history[-1]
        if last.holdout is not None and last.holdout.quality >= self.quality.quality:
            self.number, self.quality, self.weights = last.number, last.holdout, _copied(self._model)

    def restore(self) -> None:
        """Put the best weights into the model."""
        self._model.load_state_dict(self.weights)

    def to_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the weights, as JSON values."""
        return {"number": self.number, "quality": to_data(self.quality)}

    def resume(self, record: Mapping[str, Any], weights: Weights) -> None:
        """Continue from what `to_dict` gave; `weights` of epoch 0 are those that the run starts with again."""
        self.number, self.quality = record["number"], from_data(Evaluation, record["quality"])
        if self.number:
            self.weights = {name: weights[name].to(tensor.device) for name, tensor in self.weights.items()}


def _copied(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
