"""Preparation of a run: the copy to train, its optimizer and loss, wrapped by Accelerate; and the run's identity."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from prunus.errors import DataError, RunError
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import squared_distance, trainable_loss, unpack_for
from prunus.train.checkpoint import digest
from prunus.train.distillation import FeatureMaps, common_maps, distillation_loss
from prunus.train.settings import Preset, TrainingSettings, check_together
from prunus.train.sparsity import Objective, ProximalSGD, batch_norm_scales, with_penalty
from prunus.util.batches import Batch, Batches, KeptAnswers, call, device_of, move, order_channels_last
from prunus.util.options import plain

if TYPE_CHECKING:
    from accelerate import Accelerator


MEMORY = 1 << 30  # bytes of a teacher's answers that are kept at most


class AveragedWeights:
    """A copy of a network whose weights and batch-norm statistics are averages over the steps of its training.

        average = d x average + (1 - d) x weights,    d = min(decay, (1 + steps) / (10 + steps))

    The smaller d of the first steps forgets the start sooner. Whole numbers (batches that were counted) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay, self.model = decay, copy.deepcopy(model)
        self._pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))

    @torch.no_grad()
    def step(self, steps: int) -> None:
        """Take in the weights after a step; `steps` of the whole run were done before it."""
        share = 1 - min(self._decay, (1 + steps) / (10 + steps))
        for mean, now in self._pairs:
            if mean.is_floating_point():
                mean.lerp_(now, share)
            else:
                mean.copy_(now)


class SomeBatches:
    """The batches `start`, `start + step`, ... below `stop` of a loader, which is read from its beginning."""

    def __init__(self, loader: Batches, start: int, stop: int | None, step: int) -> None:
        self._loader, self._which = loader, (start, stop, step)
        self.order = getattr(loader, "order", loader)  # says whether the loader is one process's share already

    def __iter__(self) -> Iterator[Batch]:
        return islice(iter(self._loader), *self._which)

    def __len__(self) -> int:
        return len(range(length(self._loader))[slice(*self._which)])

    def set_epoch(self, epoch: int) -> None:
        set_epoch(self._loader, epoch)


def share_of(loader: Batches, accelerator: Accelerator, *, training: bool) -> Batches:
    """This process's batches of a loader.

    A loader made for this rank and world (`loader.world` or `loader.order.world`, as in prunus.zoo.data) is a share
    already. Accelerate divides a DataLoader for training; of held-out images each must be in one share only. Of any
    other loader each process takes every n-th batch. One step of training sees a batch of each process.
    """
    world = accelerator.num_processes
    if world == 1 or int(getattr(getattr(loader, "order", loader), "world", 1)) == world:
        return loader
    if training and isinstance(loader, DataLoader):
        return accelerator.prepare_data_loader(loader)  # type: ignore[no-any-return]
    if not training and length(loader) < world:
        return loader  # fewer batches than processes: all read all of it, and the merged accuracy is the same
    return SomeBatches(loader, accelerator.process_index, None, world)


def steps_of(loader: Batches, accelerator: Accelerator) -> int:
    """Steps of an epoch, the same in all processes: one with more steps would wait for the others forever."""
    steps = length(loader)
    if accelerator.num_processes > 1:
        steps = int(accelerator.gather(torch.tensor([steps], device=accelerator.device)).min())
    if steps < 1:
        raise DataError("there is nothing to train on: the loader has no batches; check the part, split and limit")
    return steps


def length(loader: Batches) -> int:
    """len(loader); RunError if it has none, because schedules need the length of an epoch."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError as error:
        raise RunError(
            f"training needs a loader with a length, got {type(loader).__name__} without one (and a generator can be "
            "read only once): pass a list of batches or a DataLoader over a data set with a length"
        ) from error


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader and its samplers which epoch begins, if they have `set_epoch`."""
    for listener in (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if (tell := getattr(listener, "set_epoch", None)) is not None:
            tell(epoch)


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
    accelerator: Accelerator
    settings: TrainingSettings
    average: AveragedWeights | None  # if that is what the run returns
    maps: FeatureMaps  # that the loss compares with the teacher's; none without `distill_features`
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


class _Wrapper(nn.Module):
    """Holds the network one level down: Accelerate patches this module, and the network itself stays clean."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.network(*inputs, **named)


def prepare(
    model: nn.Module, train: Batches, teacher: nn.Module | None, settings: TrainingSettings, accelerator: Accelerator
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
    groups: list[dict[str, Any]] = [{"params": trainable}]
    if settings.sparsity and settings.sparsity_by == "proximal":  # these scales take steps of their own
        scales = batch_norm_scales(student)
        known = {id(scale) for scale in scales}
        rest = [parameter for parameter in trainable if id(parameter) not in known]
        groups = [{"params": rest}, {"params": scales, "penalty": settings.sparsity}]
    sgd = ProximalSGD(
        groups,
        lr=schedule.lr,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
        nesterov=schedule.momentum > 0,
    )
    batches = share_of(train, accelerator, training=True)
    run = TrainingRun(
        model=student,
        wrapped=wrapped,
        sgd=sgd,
        optimizer=accelerator.prepare_optimizer(sgd),
        task=(task := task_of(settings.task)),
        objective=lambda outputs, _images, labels: trainable_loss(task, outputs, labels),
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


def _learn_from(teacher: nn.Module, run: TrainingRun, train: Batches) -> None:
    """Put the part of a copy of the teacher, in eval mode, into the run's loss."""
    settings, task, accelerator = run.settings, run.task, run.accelerator
    network = copy.deepcopy(teacher).to(accelerator.device).eval().requires_grad_(False)
    if settings.channels_last:
        order_channels_last(network)
    names = common_maps(run.model, network, example_of(train, run)) if settings.distill_features else []
    run.maps, maps = FeatureMaps(run.model, names), FeatureMaps(network, names)
    kept = KeptAnswers(MEMORY) if settings.views is not None else None  # only then do batches come again

    def answer(images: Any) -> tuple[Any, dict[str, Tensor]]:
        with torch.no_grad(), accelerator.autocast():
            return call(network, images), maps.last()

    def distil(outputs: Any, images: Any, labels: Any) -> Tensor:
        answers, teacher_maps = answer(images) if kept is None else kept.of(images, lambda: answer(images))
        answers = answers if task.outputs is None else task.outputs(answers)  # logits [N, K]
        if isinstance(outputs, Tensor) and answers.shape != outputs.shape:
            raise RunError(
                f"the teacher's outputs are {list(answers.shape)}, the network's {list(outputs.shape)}; "
                "both must have the same classes"
            )
        loss = distillation_loss(task, outputs, answers, labels, settings.temperature, settings.distill_weight)
        if settings.distill_features:
            loss = loss + settings.distill_features * squared_distance(run.maps.last(), teacher_maps)
        return loss

    run.objective = distil


def example_of(train: Batches, run: TrainingRun) -> Any:
    """One image of the first batch, on the run's device."""
    images, _ = unpack_for(run.task, next(iter(train)), 0)
    first = tree_map(lambda x: x[:1] if isinstance(x, Tensor) else x, images)
    return move(first, run.accelerator.device, run.settings.channels_last)


def identity_of(run: TrainingRun, model: nn.Module, teacher: nn.Module | None) -> dict[str, Any]:
    """Everything that the result depends on. A checkpoint with another identity belongs to another run."""
    elsewhere = ("preset", "epochs", "lr", "about", "device", "tracker")  # in the schedule, or without effect
    return {
        **dict(run.settings.about),
        **{name: value for name, value in plain(run.settings).items() if name not in elsewhere},
        **dataclasses.asdict(run.schedule),
        "steps": run.steps,
        "processes": run.accelerator.num_processes,
        "initial weights": digest(model),
        "teacher": digest(teacher),
        "task": run.task.name or "user-provided",
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
