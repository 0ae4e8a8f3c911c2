"""`prunus train`: train a network by name on a data set by name, with checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import (
    Answer,
    Early,
    complain,
    complaints,
    console,
    default_folder,
    friendly,
    resumable,
    say,
    typed_command,
)
from prunus.cli.evaluate import figures
from prunus.cli.images import DataOptions, UserData
from prunus.cli.network import check_model_name, factory_arguments, open_model, resolve, save_weights
from prunus.cli.options import DeviceOptions, Model, NumImages, values_of
from prunus.errors import DataError, RunError
from prunus.tasks import Task, task_of
from prunus.tasks.quality import QualityText
from prunus.train.settings import TrainingSettings, check_together
from prunus.util.files import TRAINING, refuse_others
from prunus.zoo.names import check_weight_file

if TYPE_CHECKING:
    from prunus.train.checkpoint import Epoch
    from prunus.train.fit import Fitted
    from prunus.util.batches import Batches

WEIGHTS, SUMMARY = "model.safetensors", "summary.json"


@friendly
def command(
    model: Model,
    data: DataOptions,
    settings: TrainingSettings,
    device: DeviceOptions,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/train-MODEL-DATA by default")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all processes", min=1)] = None,
    weights: Annotated[Path | None, typer.Option(help="Weight file to start from"), Early(check_weight_file)] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="Network to distil from: NAME=WEIGHTS, or the folder of a run"),
        Early(check_model_name),
    ] = None,
    augment: Annotated[bool, typer.Option(help="Random crops and flips")] = True,
    num_images: NumImages = None,
) -> Answer | None:
    """Train a network. The same command continues a run that was killed.

    Several processes: torchrun --nproc-per-node N -m prunus train ...

    Examples:

        prunus train resnet8 --data digits

        prunus train resnet20 --data cifar10 --preset cifar --epochs 200

        prunus train vgg16 --data cifar10 --mixed-precision bf16

        prunus train nets:unet --data folder:street --task segmentation
    """
    check_together(settings)
    taught_by = None if teacher is None else resolve(teacher)
    if taught_by is not None and not taught_by.has_weights:
        raise RunError(f"the teacher {teacher} would be untrained: give its weight file as {teacher}=FILE")
    named = resolve(model, weights)
    if named.folder is not None:
        raise RunError(
            f"{model} holds a pruned network. To prune it further: prunus prune {model}. To retrain it "
            "only: prunus.fit in Python"
        )
    data, typed_task = data.known_for(named), named.task(settings.task)
    folder = out or default_folder(f"train-{named.label}-{data.name}")
    refuse_others(folder, TRAINING, WEIGHTS, SUMMARY)
    task, schedule, seed = task_of(typed_task), settings.schedule, settings.seed
    from prunus.run.first_look import check_weights
    from prunus.train.fit import fit
    from prunus.util.processes import leave, rank_and_world
    from prunus.zoo.data import Loader

    rank, world = rank_and_world(device.device)
    images = data.open(named, seed, task)
    if not images.labelled:
        raise DataError(f"{images.name} has no labels, and training needs them")
    network = open_model(named, images, seed=seed, new_classes=True)
    check_weights(network)
    whole_batch = batch_size or schedule.batch_size
    if whole_batch < world or whole_batch % world:
        raise RunError(
            f"a batch of {whole_batch} images cannot be divided among {world} processes; change --batch-size"
        )
    each = whole_batch // world
    loaders: dict[str, Any] = {"seed": seed, "rank": rank, "world": world}
    train = images.loader("train", each, augment=augment, shuffle=True, limit=num_images, **loaders)
    number = train.num_images * world if isinstance(train, Loader) else images.count("train")
    held_out = images.loader("holdout", each, **loaders) if images.has("holdout") else None
    about = {"data": images.name, "images": number}  # a checkpoint of other data is refused
    if not isinstance(images, UserData):
        about |= {name: getattr(images, name) for name in ("shape", "mean", "std")}
        about |= {"holdout": data.holdout, "augment": augment}
    with resumable(typed_command()):
        fitted = fit(
            network,
            train,
            held_out,
            replace(settings, task=task, device=device.device, about=about),
            teacher=None if taught_by is None else open_model(taught_by, images, seed=seed),
            checkpoint_dir=folder,
            on_epoch=lambda epoch: print_epoch(epoch, schedule.epochs, task) if rank == 0 else None,
        )
    answer = None
    if rank == 0:
        options = {"model": named.name, "seed": seed, "task": typed_task, **values_of(data), "shape": images.shape}
        tests = images.loader("test", each) if images.has("test") else None
        answer = _finish(folder, fitted, options, factory_arguments(named, images), tests, task)
    leave()
    return answer


def _finish(
    folder: Path, fitted: Fitted, options: dict[str, Any], arguments: dict[str, Any], tests: Batches | None, task: Task
) -> Answer:
    """Write the weights and the summary, and evaluate on the test images, which are read here for the first time.

    options: what verbs need to open the run as a network again. arguments: what the network's factory was given.
    """
    from prunus.tasks.evaluate import evaluate, too_good
    from prunus.util.files import write_json
    from prunus.util.typed_json import to_data

    test = None if tests is None else evaluate(fitted.model, tests, task=task)
    save_weights(fitted.model, folder / WEIGHTS)
    holdout = fitted.history[-1].holdout
    summary = {name: options[name] for name in ("model", "data")} | {"command": options, "built": arguments}
    summary |= {"epochs": len(fitted.history), "holdout": to_data(holdout), "test": to_data(test)}
    write_json(folder / SUMMARY, summary)
    text = QualityText.of(task)
    for part, measured in (("held-out", holdout), ("test", test)):
        if measured is not None:
            line = ", ".join(f"{name} {value}" for name, value in figures(measured, text).items())
            say(f"{part}: {line} ({measured.num_images:,} images)")
    suspicion = None if holdout is None or task.chance is None else too_good(holdout)
    if suspicion:
        complain("warning", suspicion)
    say(f"weights: {folder / WEIGHTS}")
    return Answer({"folder": folder, "weights": folder / WEIGHTS, **summary})


def print_epoch(epoch: Epoch, epochs: int, task: Task) -> None:
    """One line of at most 80 columns."""
    text = QualityText.of(task)
    name = text.name_unless_accuracy
    holdout = "" if epoch.holdout is None else f"  held-out {name}{text.shown(epoch.holdout.quality)}"
    train = "" if epoch.quality is None else f"  train {text.shown(epoch.quality)}"
    line = f"epoch {epoch.number}/{epochs}  lr {epoch.lr:.4f}  loss {epoch.loss:.3f}{train}{holdout}"
    speed = f"  {epoch.images_per_second:,.0f}/s"
    where = complaints if console.quiet else console  # with --json
    where.print(line + speed if len(line + speed) <= 80 else line, soft_wrap=True)
