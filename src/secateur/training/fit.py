"""The training loop: read `_train_one_epoch` first."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from secateur.base.batches import Batches, call, check_range, logits_of, move, unpack
from secateur.base.preserve_state import generators_kept, reseed
from secateur.base.processes import Precision, accelerating
from secateur.errors import RunError
from secateur.measuring.accuracy import Accuracy, evaluate, too_good
from secateur.training.checkpoint import State, load_checkpoint, save_checkpoint
from secateur.training.data_shares import holdout_share, set_epoch
from secateur.training.distillation import Distillation
from secateur.training.history import Epoch, Journal, from_dict, to_dict
from secateur.training.meter import Meter, Progress, checked
from secateur.training.presets import Preset, preset_of
from secateur.training.setup import Run, identity_of, prepare, returned_like

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_NEWS = 0.5
Evaluate = Callable[[nn.Module, Batches], Accuracy]
Report = Callable[[Progress], None] | None


@dataclass(frozen=True)
class Fitted:
    """A trained network, and what the training did epoch by epoch."""

    model: nn.Module
    history: tuple[Epoch, ...]


def fit(
    model: nn.Module,
    train: Batches,
    holdout: Batches | None = None,
    *,
    preset: str | Preset = "cifar",
    epochs: int | None = None,
    lr: float | None = None,
    teacher: nn.Module | None = None,
    distillation: Distillation | None = None,
    device: torch.device | str | None = None,
    mixed_precision: Precision = "no",
    channels_last: bool = True,
    seed: int = 0,
    checkpoint_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    log: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    evaluate: Evaluate = evaluate,
) -> Fitted:
    """Train a copy of `model` on the batches of `train` and return it; `model` itself is not changed.

    `preset` names a schedule (see presets.py), `epochs` and `lr` replace its own. With a `teacher` (the unpruned
    network) the loss is that of `distillation`. After each epoch `evaluate(model, holdout)` is asked, and with
    `checkpoint_dir` the state is saved: the same call after a kill goes on from there and ends bit for bit where an
    unbroken one ends (one process, CPU). A checkpoint of other weights, schedule, seed or `settings` (a user's own
    JSON: data set, augmentation) is refused. Metrics go to `log`/metrics.jsonl (default: `checkpoint_dir`).
    `progress` hears of it twice a second, `on_epoch` after each epoch. `device` None takes the best there is. Under
    torchrun every process calls this with the same arguments, and all get the same network.
    """
    schedule = preset_of(preset, epochs=epochs, lr=lr)
    soft = distillation or Distillation()
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    with accelerating(device, mixed_precision) as accelerator, generators_kept():
        run = prepare(model, train, teacher, soft, schedule, channels_last, accelerator)
        identity = {} if folder is None else identity_of(run, soft, seed, model, teacher, settings)
        state = None if folder is None else load_checkpoint(folder, run.model, run.sgd, identity)
        history = [] if state is None else [from_dict(words) for words in state.history]
        if state is not None and accelerator.scaler is not None:
            accelerator.scaler.load_state_dict(dict(state.scaler))
        main = accelerator.is_main_process
        with Journal((Path(log) if log else folder) if main else None, history) as journal:
            for epoch in range(len(history), schedule.epochs):
                reseed(seed, epoch, accelerator.process_index)
                set_epoch(train, epoch)
                trained = _train_one_epoch(run, epoch, progress)
                accuracy = None if holdout is None else _evaluate_together(run, holdout, evaluate)
                history.append(dataclasses.replace(trained, holdout=accuracy))
                logger.info("%s", history[-1])
                if main and folder is not None:
                    save_checkpoint(folder, run.model, run.sgd, _state(identity, history, accelerator))
                journal.write(history)
                if on_epoch is not None:
                    on_epoch(history[-1])
        accelerator.wait_for_everyone()
    _warn(history)
    return Fitted(returned_like(run.model, model), tuple(history))


def _train_one_epoch(run: Run, epoch: int, progress: Report) -> Epoch:
    device, news = run.accelerator.device, time.perf_counter()
    where, rate = f"epoch {epoch + 1}", 0.0
    run.wrapped.train()
    meter = Meter(device)
    for step, batch in enumerate(islice(run.batches, run.steps)):
        images, labels_here = unpack(batch, step)
        images, labels = move(images, device, run.channels_last), labels_here.to(device, non_blocking=True)
        rate = _set_lr(run.sgd, run.schedule.lr_at(epoch + (step + 0.5) / run.steps))
        logits = logits_of(call(run.wrapped, images))  # [N, K]
        check_range(labels_here, logits, step)
        loss = run.objective(logits, images, labels)
        run.optimizer.zero_grad()
        run.accelerator.backward(loss)
        run.optimizer.step()
        meter.add(loss, logits, labels)
        if time.perf_counter() - news > SECONDS_BETWEEN_NEWS or step + 1 == run.steps:
            news = time.perf_counter()
            _tell(run, epoch, step + 1, meter, progress)
    _same_buffers(run)
    if meter.images == 0:
        raise RunError(f"the loader gave no batches in {where}, although it gave {run.steps} in its length")
    total_loss, hits, images_seen = run.accelerator.reduce(meter.totals(), reduction="sum").tolist()
    run.steps_done, run.seconds = run.steps_done + run.steps, run.seconds + meter.seconds
    loss_mean = checked(total_loss / images_seen, where)
    return Epoch(epoch + 1, rate, loss_mean, hits / images_seen, None, meter.seconds, images_seen / meter.seconds)


def _tell(run: Run, epoch: int, step: int, meter: Meter, progress: Report) -> None:
    loss, accuracy = meter.means(f"epoch {epoch + 1}, step {step}")
    if progress is None:
        return
    seconds_a_step = (run.seconds + meter.seconds) / (run.steps_done + step)
    left = (run.schedule.epochs - epoch) * run.steps - step
    speed = meter.images * run.accelerator.num_processes / meter.seconds
    place = (epoch + 1, run.schedule.epochs, step, run.steps)
    progress(Progress(*place, loss, accuracy, speed, left * seconds_a_step))


def _evaluate_together(run: Run, holdout: Batches, evaluate: Evaluate) -> Accuracy:
    """Each process looks at its share; all learn the whole."""
    if run.accelerator.num_processes == 1:
        return evaluate(run.model, holdout)
    part = evaluate(run.model, holdout_share(holdout, run.accelerator))
    shares = (part.top1, part.top5 or 0.0, part.loss, 1.0)
    mine = torch.tensor(shares, dtype=torch.float64, device=run.accelerator.device) * part.num_images
    top1, top5, loss, images = run.accelerator.reduce(mine, reduction="sum").tolist()
    return Accuracy(top1 / images, None if part.top5 is None else top5 / images, loss / images, round(images))


def _same_buffers(run: Run) -> None:
    """Batch-norm statistics of the first process for all: each saw other batches last."""
    if run.accelerator.num_processes > 1:
        from accelerate.utils import broadcast

        for buffer in run.model.buffers():
            buffer.copy_(broadcast(buffer))


def _state(identity: Mapping[str, Any], history: list[Epoch], accelerator: Accelerator) -> State:
    scaler = {} if accelerator.scaler is None else accelerator.scaler.state_dict()
    return State(identity, [to_dict(epoch) for epoch in history], scaler)


def _set_lr(optimizer: torch.optim.Optimizer, rate: float) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def _warn(history: list[Epoch]) -> None:
    last = history[-1].holdout if history else None
    words = None if last is None else too_good(last)
    if words:
        logger.warning("%s", words)
