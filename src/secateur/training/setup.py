"""Preparation of a run: the copy to train, its optimizer and loss, wrapped by Accelerate; and the run's identity."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from secateur.base.batches import Batches, call, device_of, order_channels_last
from secateur.errors import RunError
from secateur.measuring.tasks import Task, is_classification, task_of
from secateur.training.checkpoint import digest
from secateur.training.data_shares import steps_of, training_share
from secateur.training.presets import Preset
from secateur.training.settings import TrainingSettings
from secateur.training.sparsity import Objective, ProximalSGD, batch_norm_scales, with_penalty

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class TrainingRun:
    """What the loop works with. `wrapped` is `model` wrapped by Accelerate: mixed precision, processes."""

    model: nn.Module
    wrapped: nn.Module
    sgd: torch.optim.SGD
    optimizer: Any
    task: Task
    objective: Objective
    batches: Batches
    steps: int
    schedule: Preset
    channels_last: bool
    accelerator: Accelerator
    steps_done: int = 0
    seconds: float = 0.0


class _Wrapper(nn.Module):
    """Holds the network one level down: Accelerate patches this module, and the network itself stays clean."""

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
    settings: TrainingSettings,
    accelerator: Accelerator,
) -> TrainingRun:
    """The run of a copy of `model`, on the accelerator's device. The caller's objects are not changed."""
    for what, network in (("model", model), ("teacher", teacher)):
        if not isinstance(network, nn.Module) and network is not None:
            raise RunError(f"{what} must be a torch.nn.Module, got {type(network).__name__}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RunError(f"{type(model).__name__} has no parameter with requires_grad: there is nothing to train")
    schedule, channels_last = settings.schedule, settings.channels_last
    student = _ordered(copy.deepcopy(model), channels_last)
    wrapped = accelerator.prepare_model(_Wrapper(student))
    trainable = [parameter for parameter in student.parameters() if parameter.requires_grad]
    sgd = ProximalSGD(
        _groups(student, trainable, settings),
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        nesterov=schedule.momentum > 0,
    )
    optimizer = accelerator.prepare_optimizer(sgd)
    task = task_of(settings.task)
    objective = _objective(task, teacher, settings, accelerator)
    if settings.sparsity and settings.sparsity_by == "l1":
        objective = with_penalty(objective, student, settings.sparsity)
    batches = training_share(train, accelerator)
    steps = steps_of(batches, accelerator)
    return TrainingRun(
        student, wrapped, sgd, optimizer, task, objective, batches, steps, schedule, channels_last, accelerator
    )


def _groups(model: nn.Module, trainable: list[nn.Parameter], settings: TrainingSettings) -> list[dict[str, Any]]:
    """Parameters for the optimizer; batch-norm scales are a group of their own if they take proximal steps."""
    if not settings.sparsity or settings.sparsity_by == "l1":
        return [{"params": trainable}]
    scales = batch_norm_scales(model)
    known = {id(scale) for scale in scales}
    rest = [parameter for parameter in trainable if id(parameter) not in known]
    return [{"params": rest}, {"params": scales, "penalty": settings.sparsity}]


def _objective(
    task: Task, teacher: nn.Module | None, settings: TrainingSettings, accelerator: Accelerator
) -> Objective:
    if teacher is None:
        return lambda outputs, _images, labels: task.loss(outputs, labels)
    master = (
        _ordered(copy.deepcopy(teacher), settings.channels_last).to(accelerator.device).eval().requires_grad_(False)
    )

    def distil(outputs: Any, images: Any, labels: Any) -> Tensor:
        with torch.no_grad(), accelerator.autocast():
            answers = call(master, images)
        answers = answers if task.outputs is None else task.outputs(answers)  # logits [N, K]
        if isinstance(outputs, Tensor) and answers.shape != outputs.shape:
            raise RunError(
                f"the teacher's outputs are {list(answers.shape)}, the network's {list(outputs.shape)}; "
                "both must have the same classes"
            )
        if is_classification(task):
            return settings.distillation.loss(outputs, answers, labels)
        return settings.distillation.mixed(task, outputs, answers, labels)

    return distil


def _ordered(model: nn.Module, channels_last: bool) -> nn.Module:
    return order_channels_last(model) if channels_last else model


def identity_of(
    run: TrainingRun, settings: TrainingSettings, model: nn.Module, teacher: nn.Module | None
) -> dict[str, Any]:
    """Everything that the result depends on. A checkpoint with another identity belongs to another run."""
    return {
        **dict(settings.about),
        **dataclasses.asdict(run.schedule),
        "seed": settings.seed,
        "steps": run.steps,
        "processes": run.accelerator.num_processes,
        "mixed_precision": run.accelerator.mixed_precision,
        "channels_last": run.channels_last,
        "distillation": None if teacher is None else dataclasses.asdict(settings.distillation),
        "initial weights": digest(model),
        "teacher": digest(teacher),
        **({"keep_best": True} if settings.keep_best else {}),
        **({"sparsity": settings.sparsity, "sparsity_by": settings.sparsity_by} if settings.sparsity else {}),
        **({"soft_prune": settings.soft_prune} if settings.soft_prune else {}),
        **({} if is_classification(run.task) else {"task": run.task.name or "own"}),
    }


def returned_like(trained: nn.Module, original: nn.Module) -> nn.Module:
    """The trained network with the original's device and modes, in contiguous layout (safetensors needs it)."""
    trained.to(device=device_of(original), memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    trained.zero_grad(set_to_none=True)
    for module, twin in zip(trained.modules(), original.modules(), strict=True):
        module.training = twin.training
    return trained
