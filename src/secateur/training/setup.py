"""A run made ready: the copy that is trained, its optimizer and loss, behind Accelerate; and what the run is."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import Batches, call, device_of, logits_of
from secateur.errors import RunError
from secateur.measuring.accuracy import at_least_float32
from secateur.training.checkpoint import digest
from secateur.training.data_shares import steps_of, training_share
from secateur.training.distillation import Distillation
from secateur.training.presets import Preset

if TYPE_CHECKING:
    from accelerate import Accelerator

Objective = Callable[[Tensor, Any, Tensor], Tensor]  # logits [N, K], images, labels [N] -> mean loss


@dataclass
class Run:
    """What the loop works with. `wrapped` is `model` behind Accelerate: mixed precision, processes."""

    model: nn.Module
    wrapped: nn.Module
    sgd: torch.optim.SGD
    optimizer: Any
    objective: Objective
    batches: Batches
    steps: int
    schedule: Preset
    channels_last: bool
    accelerator: Accelerator
    steps_done: int = 0
    seconds: float = 0.0


class _Around(nn.Module):
    """The network one level down: what Accelerate patches is this shell, and the network stays clean."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The network's own forward."""
        return self.network(*inputs, **named)


def prepare(
    model: nn.Module,
    train: Batches,
    teacher: nn.Module | None,
    soft: Distillation,
    schedule: Preset,
    channels_last: bool,
    accelerator: Accelerator,
) -> Run:
    """The run of a copy of `model`, placed on the accelerator's device; nothing of the caller's is changed."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RunError(f"{type(model).__name__} has no parameter with requires_grad: there is nothing to train")
    student = _ordered(copy.deepcopy(model), channels_last)
    wrapped = accelerator.prepare_model(_Around(student))
    trainable = [parameter for parameter in student.parameters() if parameter.requires_grad]
    sgd = torch.optim.SGD(
        trainable,
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        nesterov=schedule.momentum > 0,
    )
    optimizer = accelerator.prepare_optimizer(sgd)
    objective = _objective(teacher, soft, channels_last, accelerator)
    batches = training_share(train, accelerator)
    steps = steps_of(batches, accelerator)
    return Run(student, wrapped, sgd, optimizer, objective, batches, steps, schedule, channels_last, accelerator)


def _objective(
    teacher: nn.Module | None, soft: Distillation, channels_last: bool, accelerator: Accelerator
) -> Objective:
    if teacher is None:
        return lambda logits, _images, labels: F.cross_entropy(at_least_float32(logits), labels)
    master = _ordered(copy.deepcopy(teacher), channels_last).to(accelerator.device).eval().requires_grad_(False)

    def distil(logits: Tensor, images: Any, labels: Tensor) -> Tensor:
        with torch.no_grad(), accelerator.autocast():
            answers = logits_of(call(master, images))  # [N, K]
        if answers.shape != logits.shape:
            raise RunError(
                f"the teacher answers {list(answers.shape)}, the network {list(logits.shape)}: other classes"
            )
        return soft.loss(logits, answers, labels)

    return distil


def _ordered(model: nn.Module, channels_last: bool) -> nn.Module:
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    return model


def identity_of(
    run: Run,
    soft: Distillation,
    seed: int,
    model: nn.Module,
    teacher: nn.Module | None,
    settings: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All that decides the outcome: a checkpoint of anything else is not this run's."""
    return {
        **dict(settings or {}),
        **dataclasses.asdict(run.schedule),
        "seed": seed,
        "steps": run.steps,
        "processes": run.accelerator.num_processes,
        "mixed_precision": run.accelerator.mixed_precision,
        "channels_last": run.channels_last,
        "distillation": None if teacher is None else dataclasses.asdict(soft),
        "initial weights": digest(model),
        "teacher": digest(teacher),
    }


def returned_like(trained: nn.Module, original: nn.Module) -> nn.Module:
    """The trained network as the original was: device, modes, plain memory order (safetensors takes no other)."""
    trained.to(device=device_of(original), memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    trained.zero_grad(set_to_none=True)
    for module, twin in zip(trained.modules(), original.modules(), strict=True):
        module.training = twin.training
    return trained
