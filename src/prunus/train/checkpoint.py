"""The state of a training run after an epoch, in one safetensors file that is written atomically.

Tensors: `model.NAME` (the state_dict), `momentum.NAME` (SGD's buffer for that parameter) and, if a run has them,
`best.NAME` (the state_dict of the best epoch) and `average.NAME` (that of the averaged weights). The file's own
metadata carries the rest as JSON: the run's `identity` and its history so far. Weights and history are replaced
together, so they always agree. Random state is not saved, because each epoch draws from generators seeded by
(seed, epoch).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from prunus.errors import FileError, RunError
from prunus.graph.files import digest_of
from prunus.tasks.evaluate import Evaluation
from prunus.util.batches import device_of
from prunus.util.files import check_writable, write_atomically
from prunus.util.typed_json import finite, from_data, to_data

if TYPE_CHECKING:
    from prunus.train.setup import TrainingRun

NAME = "checkpoint.safetensors"
FORMAT = "prunus training checkpoint 1"
METRICS_FILE = "metrics.jsonl"
Weights = dict[str, Tensor]


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


def _write_history(folder: Path, history: Sequence[Epoch]) -> None:
    """Write all epochs so far to metrics.jsonl. The file is small, and rewriting it keeps it correct after a kill."""
    lines = [json.dumps(finite(to_data(epoch)), allow_nan=False) for epoch in history]
    write_atomically(folder / METRICS_FILE, "".join(f"{line}\n" for line in lines).encode())


class BestEpoch:
    """Holds the weights of the best epoch so far; the network before the first is epoch 0. Of equal ones, the last."""

    def __init__(self, model: nn.Module, start: Evaluation) -> None:
        self._model = model
        self.number, self.quality, self.weights = 0, start, _copied(model)

    def see(self, last: Epoch) -> None:
        """Take the weights of the epoch that has just ended, if it is the best."""
        if last.holdout is not None and last.holdout.quality >= self.quality.quality:
            self.number, self.quality, self.weights = last.number, last.holdout, _copied(self._model)

    def restore(self) -> None:
        """Put the best weights into the model."""
        self._model.load_state_dict(self.weights)


def _copied(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class Checkpoint:
    """The checkpoint of a run in a folder, and metrics.jsonl beside it. Only the first process writes.

    Without a folder nothing is kept. `identity` is everything that the result depends on, as JSON values.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], run: TrainingRun, best: BestEpoch | None
    ) -> None:
        self._folder, self._model, self._best, self._average = folder, run.model, best, run.average
        self._identity = json.loads(json.dumps(identity))  # tuples become lists, as they do in the file
        self._optimizer, self._scaler = run.sgd, run.accelerator.scaler
        self._writes = folder is not None and run.accelerator.is_main_process
        if folder is not None and self._writes:
            check_writable(folder)

    def save(self, history: Sequence[Epoch]) -> None:
        """Write the file; the previous one is replaced atomically."""
        if self._folder is None or not self._writes:
            return
        best, kept = self._best, {"model": self._model.state_dict()}
        kept |= {} if best is None else {"best": best.weights}
        kept |= {} if self._average is None else {"average": self._average.model.state_dict()}
        tensors = {f"{kind}.{name}": _detached(t) for kind, weights in kept.items() for name, t in weights.items()}
        for name, parameter in self._model.named_parameters():
            buffer = self._optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = _detached(buffer)
        state = {
            "identity": self._identity,
            "history": [to_data(epoch) for epoch in history],
            "scaler": {} if self._scaler is None else self._scaler.state_dict(),
            "best": {} if best is None else {"number": best.number, "quality": to_data(best.quality)},
        }
        write_atomically(self._folder / NAME, save(tensors, {"format": FORMAT, "state": json.dumps(state)}))
        _write_history(self._folder, history)

    def resume(self) -> list[Epoch]:
        """Load the file into the run, if there is one, and return the history so far.

        Raises:
            RunError: It belongs to a run with other settings.
            FileError: It is damaged.
        """
        if self._folder is None or not (self._folder / NAME).exists():
            return []
        path = self._folder / NAME
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            if metadata.get("format") != FORMAT:
                raise FileError(f"{path} is not a training checkpoint of this version; use another folder")
            state = json.loads(metadata["state"])
            history = [from_data(Epoch, values) for values in state["history"]]
            was, scaler, best = state["identity"], state["scaler"], state["best"]
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise FileError(f"{path} is damaged ({error}); delete it to start again") from error
        now = self._identity
        if other := [key for key in {**was, **now} if was.get(key) != now.get(key)]:
            shown = ", ".join(f"{key} was {_short(was.get(key))} and is now {_short(now.get(key))}" for key in other)
            raise RunError(f"{path} belongs to another run: {shown}. Use the same settings, or another folder")

        def part(kind: str) -> Weights:
            return {name[len(kind) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}

        # The identity includes the names of all tensors, so only a damaged file can lack some.
        try:
            self._model.load_state_dict(part("model"))
        except RuntimeError as error:
            raise FileError(f"{path} does not fit the model: {error}") from error
        momentum = part("momentum")
        for name, parameter in self._model.named_parameters():
            if name in momentum:
                # empty_like keeps the parameter's device and memory order (channels last)
                buffer = torch.empty_like(parameter, requires_grad=False).copy_(momentum[name])
                self._optimizer.state[parameter]["momentum_buffer"] = buffer
        if self._scaler is not None:
            self._scaler.load_state_dict(scaler)
        if self._average is not None:
            self._average.model.load_state_dict(part("average"))
        if self._best is not None:
            self._best.number, self._best.quality = best["number"], from_data(Evaluation, best["quality"])
            if self._best.number:  # the weights of epoch 0 are those that the run starts with again
                self._best.weights = {name: t.to(device_of(self._model)) for name, t in part("best").items()}
        if self._writes:
            _write_history(self._folder, history)  # the run may have been killed between the checkpoint and this file
        return history


def _short(value: Any) -> str:
    """A value in an error message; of a digest, its beginning."""
    return f"{value[:8]}..." if isinstance(value, str) and len(value) == 64 else repr(value)


def digest(model: nn.Module | None) -> str | None:
    """SHA-256 of a model's weights, buffers and their names."""
    if model is None:
        return None
    return digest_of({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})


def _detached(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU: safetensors accepts no views and no shared memory (tied parameters)."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
