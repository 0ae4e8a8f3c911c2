"""The training loop: read `_train_one_epoch` first."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.base.atomic_files import check_writable
from secateur.base.batches import Batches, call, count_images, labels_to, move
from secateur.base.options import check, plain, replaced
from secateur.base.preserve_state import generators_kept, reseed
from secateur.base.processes import accelerating
from secateur.base.progress import shown
from secateur.errors import RunError
from secateur.measuring.accuracy import Accuracy, too_good
from secateur.measuring.accuracy import evaluate as measure
from secateur.measuring.quality_sums import outputs_for, unpack_for
from secateur.measuring.quality_words import QualityWords
from secateur.measuring.tasks import is_classification
from secateur.training.best_epoch import BestEpoch
from secateur.training.checkpoint import State, load_checkpoint, save_checkpoint
from secateur.training.data_shares import holdout_share, set_epoch
from secateur.training.history import Epoch, Journal, from_dict, to_dict
from secateur.training.meter import Meter, StepReport, checked, steps_of_epochs
from secateur.training.mixup import mixed
from secateur.training.objective import summed
from secateur.training.settings import TrainingSettings
from secateur.training.setup import (
    TrainingRun,
    example_of,
    identity_of,
    prepare,
    returned_like,
    strides_unmentioned,
)
from secateur.training.soft_filters import SoftFilters
from secateur.training.trackers import epoch_figures, tracking

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_REPORTS = 0.5
Evaluate = Callable[[nn.Module, Batches], Accuracy]
OnStep = Callable[[StepReport], None]
OnEpoch = Callable[[Epoch], None]


@dataclass(frozen=True)
class Fitted:
    """A trained network and the history of its training."""

    model: nn.Module
    history: tuple[Epoch, ...]
    kept: int | None = None  # number of the epoch whose weights `model` has, with keep_best; 0: as it was given


def fit(
    model: nn.Module,
    train: Batches,
    holdout: Batches | None = None,
    settings: TrainingSettings | None = None,
    *,
    teacher: nn.Module | None = None,
    checkpoint_dir: str | Path | None = None,
    evaluate: Evaluate | None = None,
    progress: OnStep | bool | None = None,
    on_epoch: OnEpoch | None = None,
    **changes: Any,
) -> Fitted:
    """Train a copy of `model` on the batches of `train` and return it; `model` itself is not changed.

        fitted = secateur.fit(model, train, holdout, preset="cifar", epochs=50, seed=1)

    holdout: batches for `evaluate(model, holdout)`, which is called after each epoch; by default the task's quality.
    settings, changes: a `TrainingSettings`, or its fields by name: preset, epochs, lr, mixed_precision, channels_last,
        seed, sparsity, sparsity_by, soft_prune, keep_best, first_epoch, task, device, about, warmup, batch_norm, mixup,
        ema, views, temperature, distill_weight, distill_features, tracker.
    teacher: the network to distil from, usually the unpruned one.
    checkpoint_dir: folder for the state after each epoch and for metrics.jsonl. The same call continues a killed run,
        and its result is bit for bit that of an uninterrupted run (one process, CPU). A checkpoint of a run with other
        weights or settings is refused.
    progress: False, or a function that is called about twice a second with a `StepReport`. on_epoch: after each epoch.

    Under torchrun every process makes this call with the same arguments, and all get the same network.
    """
    chosen: TrainingSettings = replaced(settings or TrainingSettings(), changes, RunError)
    check(chosen, RunError)
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    display = shown(progress, steps_of_epochs)
    with accelerating(chosen.device, chosen.mixed_precision) as accelerator, generators_kept(), display as report:
        run = prepare(model, train, teacher, chosen, accelerator)
        store = _Store(folder, run, {} if folder is None else identity_of(run, chosen, model, teacher))
        first = _evaluate_together(run, holdout, evaluate) if chosen.keep_best else None
        best = None if first is None else BestEpoch(run.result, first)
        history = store.resume(best)
        soft = SoftFilters(run.model, example_of(train, run), chosen.soft_prune) if chosen.soft_prune else None
        with _journal(run, chosen, folder, history) as write:
            for epoch in range(len(history), run.schedule.epochs):
                reseed(chosen.seed, chosen.drawn_epoch(epoch), accelerator.process_index)
                set_epoch(train, chosen.drawn_epoch(epoch))
                trained = _train_one_epoch(run, epoch, report)
                if soft is not None:
                    soft.zero()
                history.append(dataclasses.replace(trained, holdout=_evaluate_together(run, holdout, evaluate)))
                logger.info("%s", history[-1])
                if best is not None:
                    best.see(history)
                store.save(history, best)
                write()
                if on_epoch is not None:
                    on_epoch(history[-1])
        accelerator.wait_for_everyone()
    _warn_if_too_good(history, run)
    if best is not None:
        best.restore()
    return Fitted(returned_like(run, model), tuple(history), None if best is None else best.number)


@contextmanager
def _journal(
    run: TrainingRun, settings: TrainingSettings, folder: Path | None, history: list[Epoch]
) -> Iterator[Callable[[], None]]:
    """A function that writes the last epoch to metrics.jsonl and to the tracker; in the main process alone it does."""
    is_main, words = run.accelerator.is_main_process, QualityWords.of(run.task)
    journal = Journal(folder if is_main else None, history)
    with tracking(settings.tracker if is_main else None, folder, plain(settings), len(history)) as track:

        def write() -> None:
            journal.write(history)
            track(epoch_figures(history[-1], words), history[-1].number)

        yield write


class _Store:
    """The checkpoint of a run; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, run: TrainingRun, identity: dict[str, Any]) -> None:
        self._folder, self._run, self._identity = folder, run, identity

    def resume(self, best: BestEpoch | None) -> list[Epoch]:
        """Load the checkpoint into the run, if there is one, and return the history so far."""
        run = self._run
        if self._folder is None:
            return []
        if run.accelerator.is_main_process:
            check_writable(self._folder)
        state = load_checkpoint(self._folder, run.model, run.sgd, self._identity)
        if state is None:
            return []
        if run.accelerator.scaler is not None:
            run.accelerator.scaler.load_state_dict(dict(state.scaler))
        if best is not None:
            best.resume(state.best, dict(state.weights["best"]))
        if run.average is not None:
            run.average.resume(state.weights["average"])
        return [from_dict(values) for values in state.history]

    def save(self, history: list[Epoch], best: BestEpoch | None) -> None:
        """Write the checkpoint; the main process alone does."""
        run = self._run
        if self._folder is not None and run.accelerator.is_main_process:
            scaler = {} if run.accelerator.scaler is None else run.accelerator.scaler.state_dict()
            weights = {"best": {} if best is None else best.weights, "average": run.averages()}
            seen = {} if best is None else best.to_dict()
            state = State(self._identity, [to_dict(epoch) for epoch in history], scaler, seen, weights)
            save_checkpoint(self._folder, run.model, run.sgd, state)


@strides_unmentioned()
def _train_one_epoch(run: TrainingRun, epoch: int, progress: OnStep) -> Epoch:
    device, reported = run.accelerator.device, time.perf_counter()
    where, rate = f"epoch {epoch + 1}", 0.0
    run.train_mode()
    meter = Meter(device, run.task.measured)
    for step, batch in enumerate(islice(run.batches, run.steps)):
        images, labels_here = unpack_for(run.task, batch, step)
        images, labels = move(images, device, run.settings.channels_last), labels_to(labels_here, device)
        images, targets = mixed(images, labels, run.settings.mixup)
        rate = _set_lr(run.sgd, run.schedule.lr_at(epoch + (step + 0.5) / run.steps))
        outputs = outputs_for(run.task, _outputs(run, images, f"{where}, step {step + 1}"), labels_here, step)
        loss = summed(run.objective, outputs, images, targets)
        run.optimizer.zero_grad()
        run.accelerator.backward(loss)
        run.optimizer.step()
        run.after_step(epoch * run.steps + step)
        meter.add(loss, outputs, labels, count_images(images))
        if time.perf_counter() - reported > SECONDS_BETWEEN_REPORTS or step + 1 == run.steps:
            reported = time.perf_counter()
            _report(run, epoch, step + 1, meter, progress)
    _same_buffers(run)
    if meter.num_images == 0:
        raise RunError(f"the loader gave no batches in {where}, although its length is {run.steps}")
    total_loss, quality, num_images = run.accelerator.reduce(meter.totals(), reduction="sum").tolist()
    run.steps_done, run.seconds = run.steps_done + run.steps, run.seconds + meter.seconds
    loss_mean = checked(total_loss / num_images, where)
    mean = quality / num_images if meter.measures else None
    return Epoch(epoch + 1, rate, loss_mean, mean, None, meter.seconds, num_images / meter.seconds)


def _outputs(run: TrainingRun, images: Any, where: str) -> Any:
    """What the network computes; a batch norm that sees a single value per channel is explained."""
    try:
        return call(run.wrapped, images)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise RunError(
            f"{where}: a batch norm cannot be trained on a single image ({error}). Leave out the last, smaller batch "
            "(drop_last=True in a DataLoader), or change the batch size"
        ) from error


def _report(run: TrainingRun, epoch: int, step: int, meter: Meter, progress: OnStep) -> None:
    loss, accuracy = meter.means(f"epoch {epoch + 1}, step {step}")
    seconds_per_step = (run.seconds + meter.seconds) / (run.steps_done + step)
    left = (run.schedule.epochs - epoch) * run.steps - step
    speed = meter.num_images * run.accelerator.num_processes / meter.seconds
    position = (epoch + 1, run.schedule.epochs, step, run.steps)
    progress(StepReport(*position, loss, accuracy, speed, left * seconds_per_step))


def _evaluate_together(run: TrainingRun, holdout: Batches | None, evaluate: Evaluate | None) -> Accuracy | None:
    """Each process evaluates its share; all get the result of the whole. None without held-out images."""
    if holdout is None:
        return None
    evaluate = evaluate or functools.partial(measure, task=run.task)
    if run.accelerator.num_processes == 1 or not run.task.measured.is_mean:  # only means can be merged from shares
        return evaluate(run.result, holdout)
    part = evaluate(run.result, holdout_share(holdout, run.accelerator))
    shares = (part.top1, part.top5 or 0.0, part.loss, 1.0)
    mine = torch.tensor(shares, dtype=torch.float64, device=run.accelerator.device) * part.num_images
    top1, top5, loss, num_images = run.accelerator.reduce(mine, reduction="sum").tolist()
    top5_share = None if part.top5 is None else top5 / num_images
    return Accuracy(top1 / num_images, top5_share, loss / num_images, round(num_images))


def _same_buffers(run: TrainingRun) -> None:
    """Give all processes the first one's batch-norm statistics: each has seen other batches."""
    if run.accelerator.num_processes > 1:
        from accelerate.utils import broadcast

        for buffer in (*run.model.buffers(), *run.result.buffers()):
            buffer.copy_(broadcast(buffer))


def _set_lr(optimizer: torch.optim.Optimizer, rate: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def _warn_if_too_good(history: list[Epoch], run: TrainingRun) -> None:
    last = history[-1].holdout if history and is_classification(run.task) else None
    warning = None if last is None else too_good(last)
    if warning:
        logger.warning("%s", warning)
