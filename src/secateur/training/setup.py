"""Preparation of a run: the copy to train, its optimizer and loss, wrapped by Accelerate; and the run's identity."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from secateur.base.batches import Batches, device_of, move, order_channels_last
from secateur.errors import RunError
from secateur.measuring.quality_sums import unpack_for
from secateur.measuring.tasks import Task, is_classification, task_of
from secateur.training.averaging import AveragedWeights
from secateur.training.checkpoint import digest
from secateur.training.data_shares import steps_of, training_share
from secateur.training.feature_maps import FeatureMaps, common_maps
from secateur.training.objective import distilled_objective, plain_objective
from secateur.training.presets import Preset
from secateur.training.settings import TrainingSettings, check_together
from secateur.training.sparsity import Objective, ProximalSGD, batch_norm_scales, with_penalty
from secateur.training.teacher import Teacher

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class TrainingRun:
    """What the loop works with. `wrapped` is `model` wrapped by Accelerate: mixed precision, processes.

    average: the moving average of the weights, if that is what the run returns. maps: the feature maps of `model` that
    the loss compares with the teacher's; none without `distill_features`.
    """

    model: nn.Module
    wrapped: nn.Module
    sgd: torch.optim.SGD
    optimizer: Any
    task: Task
    objective: Objective
    batches: Batches
    steps: int
    schedule: Preset
    accelerator: Accelerator
    settings: TrainingSettings
    average: AveragedWeights | None
    maps: FeatureMaps
    steps_done: int = 0
    seconds: float = 0.0

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and returned."""
        return self.model if self.average is None else self.average.model

    def train_mode(self) -> None:
        """Every module in training mode; batch norms whose statistics are frozen stay in eval mode."""
        self.wrapped.train()
        if self.settings.batch_norm == "frozen":
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()

    def averages(self) -> dict[str, Tensor]:
        """The averaged weights; empty if there are none."""
        return {} if self.average is None else self.average.model.state_dict()

    def after_step(self, steps: int) -> None:
        """Average the weights, if asked; `steps` of the whole run were done before this one."""
        if self.average is not None:
            self.average.step(steps)


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
    if teacher is None and settings.idle_without_teacher:
        raise RunError(f"{settings.idle_without_teacher} does nothing without a teacher: pass one, or leave it out")
    check_together(settings)
    schedule, student = settings.schedule, copy.deepcopy(model)
    if settings.channels_last:
        order_channels_last(student)
    wrapped = accelerator.prepare_model(_Wrapper(student))
    trainable = [parameter for parameter in student.parameters() if parameter.requires_grad]
    sgd = ProximalSGD(
        _groups(student, trainable, settings),
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        nesterov=schedule.momentum > 0,
    )
    batches = training_share(train, accelerator)
    run = TrainingRun(
        model=student,
        wrapped=wrapped,
        sgd=sgd,
        optimizer=accelerator.prepare_optimizer(sgd),
        task=(task := task_of(settings.task)),
        objective=plain_objective(task),
        batches=batches,
        steps=steps_of(batches, accelerator),
        schedule=schedule,
        accelerator=accelerator,
        settings=settings,
        average=AveragedWeights(student, settings.ema) if settings.ema else None,
        maps=FeatureMaps(student, []),
    )
    if teacher is not None:
        _learn_from(teacher, run, train)
    if settings.sparsity and settings.sparsity_by == "l1":
        run.objective = with_penalty(run.objective, student, settings.sparsity)
    return run


def _groups(model: nn.Module, trainable: list[nn.Parameter], settings: TrainingSettings) -> list[dict[str, Any]]:
    """Parameters for the optimizer; batch-norm scales are a group of their own if they take proximal steps."""
    if not settings.sparsity or settings.sparsity_by == "l1":
        return [{"params": trainable}]
    scales = batch_norm_scales(model)
    known = {id(scale) for scale in scales}
    rest = [parameter for parameter in trainable if id(parameter) not in known]
    return [{"params": rest}, {"params": scales, "penalty": settings.sparsity}]


def _learn_from(teacher: nn.Module, run: TrainingRun, train: Batches) -> None:
    """Put the teacher's part into the run's loss."""
    settings = run.settings
    master = Teacher(teacher, run.accelerator, settings.channels_last, keeps=settings.views is not None)
    if settings.distill_features:
        names = common_maps(run.model, master.network, example_of(train, run))
        run.maps = FeatureMaps(run.model, names)
        master.watch(names)
    run.objective = distilled_objective(run.task, master, settings.distillation, run.maps)


def example_of(train: Batches, run: TrainingRun) -> Any:
    """One image of the first batch, on the run's device."""
    images, _ = unpack_for(run.task, next(iter(train)), 0)
    first = tree_map(lambda x: x[:1] if isinstance(x, Tensor) else x, images)
    return move(first, run.accelerator.device, run.settings.channels_last)


@contextmanager
def strides_unmentioned() -> Iterator[None]:
    """Without PyTorch's warning that gradients have other strides than the weights of several processes.

    Of a weight [N, 1, ...] both layouts are the same bytes in memory, so nothing is lost by it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        yield


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
        "channels_last": settings.channels_last,
        "distillation": None if teacher is None else dataclasses.asdict(settings.distillation),
        "initial weights": digest(model),
        "teacher": digest(teacher),
        **({"keep_best": True} if settings.keep_best else {}),
        "first_epoch": settings.first_epoch,
        **({"sparsity": settings.sparsity, "sparsity_by": settings.sparsity_by} if settings.sparsity else {}),
        **({"soft_prune": settings.soft_prune} if settings.soft_prune else {}),
        **settings.fine_tuning,
        **({} if is_classification(run.task) else {"task": run.task.name or "own"}),
    }


def returned_like(run: TrainingRun, original: nn.Module) -> nn.Module:
    """The trained network with the original's device and modes, in contiguous layout (safetensors needs it)."""
    run.maps.remove()
    trained = run.result
    trained.to(device=device_of(original), memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    trained.zero_grad(set_to_none=True)
    for module, twin in zip(trained.modules(), original.modules(), strict=True):
        module.training = twin.training
    return trained
