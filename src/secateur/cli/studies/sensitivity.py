"""secateur study sensitivity: two ways of choosing layers, iteration by iteration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.cli.common import console, friendly, phases
from secateur.cli.options import (
    Augment,
    Data,
    DataRoot,
    DecidingImages,
    Device,
    Exact,
    LearningRate,
    Mean,
    Size,
    Std,
    Streams,
    Weights,
    Workers,
)


@friendly
def command(
    model: Annotated[str, typer.Argument(help="Network: NAME or NAME=WEIGHTS.")],
    weights: Weights = None,
    data: Data = "digits",
    start: Annotated[str, typer.Option(help="MACs that both begin without, or a finished run's folder.")] = "0.31",
    end: Annotated[float, typer.Option(help="MACs that both end without.")] = 0.56,
    iterations: Annotated[int, typer.Option(help="Steps of pruning and retraining from start to end.")] = 5,
    metric: Annotated[str, typer.Option(help="What a channel is worth by.")] = "gsd",
    images: Annotated[int | None, typer.Option(help="Score on so many images, drawn anew each iteration.")] = None,
    k: Annotated[int | None, typer.Option(help="Units pruned an iteration; a third of them by default.")] = None,
    measure: Annotated[str, typer.Option(help="Rank units by held-out accuracy or loss.")] = "accuracy",
    exact: Exact = False,
    streams: Streams = "select",
    repair: Annotated[str, typer.Option(help="Before retraining: none, bn or solve.")] = "none",
    preset: Annotated[str, typer.Option(help="Retraining schedule, as in `secateur train`.")] = "cosine",
    epochs: Annotated[int | None, typer.Option(help="Epochs an iteration; 0: no retraining.")] = None,
    lr: LearningRate = None,
    distill: Annotated[bool, typer.Option(help="Retrain towards the unpruned network's answers too.")] = False,
    augment: Augment = True,
    batch_size: Annotated[int, typer.Option(help="Images of a step.")] = 128,
    limit: Annotated[int | None, typer.Option(help="At most so many held-out and test images.")] = None,
    holdout: DecidingImages = "train:0.1",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    workers: Workers = 0,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="Of samples, order and augmentation.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/study-sensitivity-MODEL-DATA by default.")] = None,
) -> None:
    """Prune and retrain by Algorithm 1 and by Li et al.'s analysis, side by side (the paper's Fig. 5).

    Both begin with the same network and remove as many MACs in each iteration. The same command again goes on where it
    stopped. Two processes take an arm each: torchrun --nproc-per-node 2 -m secateur study sensitivity ...

    Examples:

        secateur study sensitivity resnet56=w.safetensors --data cifar10

        secateur study sensitivity resnet56=w.safetensors --start runs/prune
    """
    from secateur.cli.columns import columns
    from secateur.cli.networks import trained_networks
    from secateur.cli.opening import open_data
    from secateur.cli.studies.common import about_images, say_where, study_folder, typed
    from secateur.studies.sensitivity_study.study import sensitivity

    name = model.partition("=")[0]
    found = open_data(data, name, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    network = next(iter(trained_networks([model], weights, found, device, seed).values()))
    folder = study_folder(out, "sensitivity", name, data)
    leads = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, only the first one speaks
    loaders: dict[str, Any] = {"seed": seed, "workers": workers}
    with phases(leads) as show:
        rows = sensitivity(
            network,
            found.loader("train", batch_size, augment=augment, shuffle=True, **loaders),
            found.loader("holdout", 256, limit=limit, **loaders),
            folder,
            test=found.loader("test", 256, limit=limit, **loaders) if found.count("test") else None,
            score_on=found.loader("train", 256, **loaders),
            start=_start(start),
            end=end,
            iterations=iterations,
            about=about_images(data, found, holdout, limit, augment, batch_size),
            command=typed(),
            progress=show,
            metric=metric,
            images=images,
            k=k,
            measure=measure,
            exact=exact,
            streams=streams,
            repair=repair,
            preset=preset,
            epochs=epochs,
            lr=lr,
            distill=distill,
            seed=seed,
        )
    if leads:
        titles = ["method", "iteration", "MACs removed", "as cut", "held-out", "test"]
        console.print(columns(titles, [_line(row) for row in rows], numbers=titles[1:]), markup=False, soft_wrap=True)
        say_where(folder)


def _start(text: str) -> float | Path:
    try:
        return float(text)
    except ValueError:
        return Path(text)


def _line(row: dict[str, Any]) -> list[str]:
    cells = ["-" if row[part] is None else f"{row[part]:.2f}" for part in ("cut", "holdout", "test")]
    return [row["method"], str(row["iteration"]), f"{row['macs_removed']:.1%}", *cells]
