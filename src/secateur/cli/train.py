"""`secateur train`: train a network by name on a data set by name, with checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import complaints, console, friendly, progress
from secateur.cli.options import Data, DataRoot, Device, HeldOut, LearningRate, Mean, Size, Std, Workers

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from secateur.training.fit import Fitted
    from secateur.training.history import Epoch
    from secateur.training.meter import Progress

WEIGHTS, SUMMARY = "model.safetensors", "summary.json"


@friendly
def command(
    model: Annotated[str, typer.Option(help="Built-in name, torchvision:NAME, timm:NAME, package.module:factory.")],
    data: Data,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/train-MODEL-DATA by default.")] = None,
    preset: Annotated[
        str, typer.Option(help="cosine, cifar, imagenet-vgg16, imagenet-resnet50, effectiveness.")
    ] = "cosine",
    epochs: Annotated[int | None, typer.Option(help="Epochs, instead of the preset's.")] = None,
    lr: LearningRate = None,
    batch_size: Annotated[int | None, typer.Option(help="Images of a step over all processes.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Start from these weights.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Distil from this network.")] = None,
    teacher_weights: Annotated[Path | None, typer.Option(help="The teacher's weight file.")] = None,
    temperature: Annotated[float, typer.Option(help="Of the distillation.")] = 2.0,
    distill_weight: Annotated[float, typer.Option(help="Share of the distillation in the loss, 0 to 1.")] = 0.5,
    holdout: HeldOut = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    augment: Annotated[bool, typer.Option(help="Random crops and flips.")] = True,
    limit: Annotated[int | None, typer.Option(help="Train on at most so many images.")] = None,
    workers: Workers = 0,
    device: Device = None,
    mixed_precision: Annotated[str, typer.Option(help="no, bf16 or fp16.")] = "no",
    channels_last: Annotated[bool, typer.Option(help="Memory order that is faster for most convolutions.")] = True,
    seed: Annotated[int, typer.Option(help="Of initial weights, held-out images, order and augmentation.")] = 0,
) -> None:
    """Train a network. The same command goes on where a killed one stopped.

    Several processes: torchrun --nproc-per-node N -m secateur train ...

    Examples:

        secateur train resnet8 --data digits

        secateur train resnet20 --data cifar10 --preset cifar --epochs 200

        secateur train vgg16 --data cifar10 --mixed-precision bf16
    """
    from secateur.base.processes import leave, rank_and_world
    from secateur.cli.opening import open_data, open_model
    from secateur.training.distillation import Distillation
    from secateur.training.fit import fit
    from secateur.training.presets import preset_of

    folder = out or Path("runs") / _plain(f"train-{model}-{data}")
    schedule = preset_of(preset, epochs=epochs, lr=lr)
    rank, world = rank_and_world(device)
    images = open_data(data, model, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    network = open_model(model, images, weights, seed=seed)
    loaders: dict[str, Any] = {"seed": seed, "workers": workers, "rank": rank, "world": world}
    each = _share_of_batch(batch_size or schedule.batch_size, world)
    train = images.loader("train", each, augment=augment, shuffle=True, limit=limit, **loaders)
    held_out = images.loader("holdout", each, **loaders) if images.count("holdout") else None
    with progress() as bar:
        task = bar.add_task("training", total=schedule.epochs * len(train), note="", visible=rank == 0)
        fitted = fit(
            network,
            train,
            held_out,
            preset=schedule,
            teacher=None if teacher is None else open_model(teacher, images, teacher_weights, seed=seed),
            distillation=Distillation(temperature, distill_weight),
            device=device,
            mixed_precision=mixed_precision,  # type: ignore[arg-type]  # fit names the choices
            channels_last=channels_last,
            seed=seed,
            checkpoint_dir=folder,
            settings={
                "data": images.name,
                "images": train.num_images * world,
                "shape": images.shape,
                "mean": images.mean,
                "std": images.std,
                "holdout": holdout,
                "augment": augment,
            },
            progress=lambda news: _show(bar, task, news),
            on_epoch=lambda epoch: _say(epoch, schedule.epochs) if rank == 0 else None,
        )
    if rank == 0:
        _finish(folder, fitted, model, images, each, workers)
    leave()


def _finish(folder: Path, fitted: Fitted, model: str, images: Any, batch_size: int, workers: int) -> None:
    """Write the weights and the summary, and report on the test images, which nothing has read until now."""
    import dataclasses
    import json

    from safetensors.torch import save

    from secateur.base.atomic_files import write_atomically
    from secateur.measuring.accuracy import evaluate, too_good

    test = evaluate(fitted.model, images.loader("test", batch_size, workers=workers)) if images.count("test") else None
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in fitted.model.state_dict().items()}
    write_atomically(folder / WEIGHTS, save(tensors))
    last = fitted.history[-1]
    summary = {
        "model": model,
        "data": images.name,
        "epochs": len(fitted.history),
        "holdout": None if last.holdout is None else dataclasses.asdict(last.holdout),
        "test": None if test is None else dataclasses.asdict(test),
    }
    write_atomically(folder / SUMMARY, f"{json.dumps(summary, indent=2)}\n".encode())
    for part, found in (("held-out", last.holdout), ("test", test)):
        if found is not None:
            top5 = "" if found.top5 is None else f", top-5 {100 * found.top5:.2f}%"
            console.print(
                f"{part}: top-1 {100 * found.top1:.2f}%{top5}, loss {found.loss:.4f} ({found.num_images:,} images)"
            )
    suspicion = None if last.holdout is None else too_good(last.holdout)
    if suspicion:
        complaints.print(f"[yellow]warning:[/] {suspicion}", soft_wrap=True)
    console.print(f"weights: {folder / WEIGHTS}", soft_wrap=True)


def _show(bar: Bar, task: TaskID, news: Progress) -> None:
    note = f"loss {news.loss:.3f}, {100 * news.accuracy:.1f}%, {news.images_per_second:,.0f} images/s"
    done = (news.epoch - 1) * news.steps + news.step
    bar.update(task, completed=done, description=f"epoch {news.epoch}/{news.epochs}", note=note)


def _say(epoch: Epoch, epochs: int) -> None:
    held = "" if epoch.holdout is None else f"  held-out {100 * epoch.holdout.top1:.2f}%"
    console.print(
        f"epoch {epoch.number}/{epochs}  lr {epoch.lr:.5f}  loss {epoch.loss:.4f}  "
        f"accuracy {100 * epoch.accuracy:.2f}%{held}  {epoch.images_per_second:,.0f} images/s",
        soft_wrap=True,
    )


def _share_of_batch(batch_size: int, world: int) -> int:
    from secateur.errors import RunError

    if batch_size < world or batch_size % world:
        raise RunError(f"a batch of {batch_size} does not divide among {world} processes; choose another --batch-size")
    return batch_size // world


def _plain(name: str) -> str:
    """A folder name out of a model and data name that may hold slashes and colons."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
