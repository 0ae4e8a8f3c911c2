"""`prunus train`: train a network by name on a data set by name, with checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, complain, console, friendly, resolve, resumable, run_folder, typed_command
from prunus.cli.inputs import OwnData
from prunus.cli.options import DataOptions, DeviceOptions, Model, options_from_settings, task_for, values_of
from prunus.errors import RunError
from prunus.tasks import Task, is_classification, task_of
from prunus.tasks.quality import QualityWords
from prunus.train.settings import TrainingSettings, check_together
from prunus.util.files import TRAINING, refuse_others

if TYPE_CHECKING:
    from prunus.cli.options import AnyData
    from prunus.train.checkpoint import Epoch
    from prunus.train.fit import Fitted
    from prunus.util.batches import Batches

WEIGHTS, SUMMARY = "model.safetensors", "summary.json"


@friendly
@options_from_settings
def command(
    model: Model,
    settings: TrainingSettings,
    data: DataOptions,
    device: DeviceOptions,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/train-MODEL-DATA by default")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step, over all processes", min=1)] = None,
    weights: Annotated[Path | None, typer.Option(help="Weight file to start from"), Early(early_checks.weights)] = None,
    teacher: Annotated[str | None, typer.Option(help="Network to distil from"), Early(early_checks.network)] = None,
    teacher_weights: Annotated[
        Path | None, typer.Option(help="Weight file of the teacher"), Early(early_checks.weights)
    ] = None,
    augment: Annotated[bool, typer.Option(help="Random crops and flips")] = True,
    limit: Annotated[int | None, typer.Option(help="Largest number of training images", min=1)] = None,
) -> None:
    """Train a network. The same command continues a run that was killed.

    Several processes: torchrun --nproc-per-node N -m prunus train ...

    Examples:

        prunus train resnet8 --data digits

        prunus train resnet20 --data cifar10 --preset cifar --epochs 200

        prunus train vgg16 --data cifar10 --mixed-precision bf16

        prunus train nets:unet --task segmentation --data folder:street
    """
    check_together(settings)
    if teacher is None and teacher_weights is not None:
        raise RunError("--teacher-weights needs --teacher MODEL, the network that the weights are of")
    if teacher is not None and teacher_weights is None and not resolve(teacher).has_weights:
        raise RunError(f"the teacher {teacher} would be untrained: pass --teacher-weights FILE")
    if resolve(model).folders:
        raise RunError(
            f"{model} holds a pruned network. To prune it further: prunus prune {model}. To retrain it "
            "only: prunus.fit in Python"
        )
    data, typed_task = data.known_for(model), task_for(model, settings.task)
    task = task_of(typed_task)
    folder = out or run_folder(f"train-{resolve(model).label}-{data.name}")
    refuse_others(folder, TRAINING, WEIGHTS, SUMMARY)
    schedule, seed = settings.schedule, settings.seed
    from prunus.cli.inputs import open_model
    from prunus.train.fit import fit
    from prunus.util.processes import leave, rank_and_world
    from prunus.zoo.data import Loader

    rank, world = rank_and_world(device.device)
    images = data.open(model, seed, task)
    network = open_model(model, images, weights, seed=seed)
    loaders: dict[str, Any] = {"seed": seed, "rank": rank, "world": world}
    each = _share_of_batch(batch_size or schedule.batch_size, world)
    train = images.loader("train", each, augment=augment, shuffle=True, limit=limit, **loaders)
    num_images = train.num_images * world if isinstance(train, Loader) else images.count("train")
    held_out = images.loader("holdout", each, **loaders) if images.has("holdout") else None
    settings = replace(
        settings,
        task=task,
        device=device.device,
        about=_identity(images, num_images, data.holdout, augment),
    )
    with resumable(typed_command()):
        fitted = fit(
            network,
            train,
            held_out,
            settings,
            teacher=None if teacher is None else open_model(teacher, images, teacher_weights, seed=seed),
            checkpoint_dir=folder,
            on_epoch=lambda epoch: _print_epoch(epoch, schedule.epochs, task) if rank == 0 else None,
        )
    if rank == 0:
        asked = {"model": resolve(model).name, "seed": seed, "task": typed_task, **values_of(data)}
        _finish(folder, fitted, asked, images.loader("test", each) if images.has("test") else None, task)
    leave()


def _identity(images: AnyData, num_images: int, holdout: str, augment: bool) -> dict[str, Any]:
    """What the data of a run are. A checkpoint of other data is refused."""
    if isinstance(images, OwnData):
        return {"data": images.name, "images": num_images}
    return {
        "data": images.name,
        "images": num_images,
        "shape": images.shape,
        "mean": images.mean,
        "std": images.std,
        "holdout": holdout,
        "augment": augment,
    }


def _finish(folder: Path, fitted: Fitted, asked: dict[str, Any], tests: Batches | None, task: Task) -> None:
    """Write the weights and the summary, and evaluate on the test images, which are read here for the first time.

    asked: what verbs need to open the run as a network again.
    """
    import dataclasses
    import json

    from safetensors.torch import save

    from prunus.tasks.evaluate import evaluate, too_good
    from prunus.util.files import write_atomically

    test = None if tests is None else evaluate(fitted.model, tests, task=task)
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in fitted.model.state_dict().items()}
    write_atomically(folder / WEIGHTS, save(tensors))
    last = fitted.history[-1]
    summary = {
        "model": asked["model"],
        "data": asked["data"],
        "command": asked,
        "epochs": len(fitted.history),
        "holdout": None if last.holdout is None else dataclasses.asdict(last.holdout),
        "test": None if test is None else dataclasses.asdict(test),
    }
    write_atomically(folder / SUMMARY, f"{json.dumps(summary, indent=2)}\n".encode())
    words, classifies = QualityWords.of(task), is_classification(task)
    for part, found in (("held-out", last.holdout), ("test", test)):
        if found is not None:
            top5 = "" if found.top5 is None else f", top-5 {100 * found.top5:.2f}%"
            console.print(
                f"{part}: {'top-1' if classifies else words.name} {words.shown(found.quality)}{top5}, "
                f"loss {found.loss:.4f} ({found.num_images:,} images)"
            )
    suspicion = None if last.holdout is None or not classifies else too_good(last.holdout)
    if suspicion:
        complain("warning", suspicion)
    console.print(f"weights: {folder / WEIGHTS}", soft_wrap=True)


def _print_epoch(epoch: Epoch, epochs: int, task: Task) -> None:
    words = QualityWords.of(task)
    name = "" if is_classification(task) else f"{words.name} "
    held = "" if epoch.holdout is None else f"  held-out {name}{words.shown(epoch.holdout.quality)}"
    train = "" if epoch.accuracy is None else f"  train {words.shown(epoch.accuracy)}"
    line = f"epoch {epoch.number}/{epochs}  lr {epoch.lr:.4f}  loss {epoch.loss:.3f}{train}{held}"
    speed = f"  {epoch.images_per_second:,.0f}/s"
    console.print(line + speed if len(line + speed) <= 80 else line, soft_wrap=True)


def _share_of_batch(batch_size: int, world: int) -> int:
    if batch_size < world or batch_size % world:
        raise RunError(f"a batch of {batch_size} images cannot be divided among {world} processes; change --batch-size")
    return batch_size // world
