"""secateur study effectiveness: which metric picks the channels that can go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.cli.common import console, friendly, names_in, phases
from secateur.cli.options import Augment, Data, DataRoot, Device, LearningRate, Mean, Size, Std, Streams, Workers


@friendly
def command(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Networks: NAME or NAME=WEIGHTS.")],
    weights: Annotated[Path | None, typer.Option(help="Weights of a network that comes alone.")] = None,
    data: Data = "digits",
    metric: Annotated[
        list[str] | None, typer.Option(help="Names with commas between (gsd:ridge=0.5 too); all by default.")
    ] = None,
    ratios: Annotated[str, typer.Option(help="Shares of channels to remove.")] = "0.1,0.2,0.3,0.4,0.5",
    seeds: Annotated[int, typer.Option(help="Repeat with so many samples of images, for the spread.")] = 1,
    units: Annotated[str, typer.Option(help="inner channels of blocks, or all.")] = "inner",
    images: Annotated[int | None, typer.Option(help="Score on so many training images; all by default.")] = None,
    map_images: Annotated[int, typer.Option(help="Score on so many by di and mmd.")] = 2000,
    repair: Annotated[str, typer.Option(help="Also measure after repair: none, bn or solve.")] = "none",
    repair_images: Annotated[int, typer.Option(help="Images to repair on.")] = 500,
    epochs: Annotated[int, typer.Option(help="Also measure after so many epochs of retraining.")] = 0,
    preset: Annotated[str, typer.Option(help="Retraining schedule, as in `secateur train`.")] = "effectiveness",
    lr: LearningRate = None,
    augment: Augment = True,
    batch_size: Annotated[int, typer.Option(help="Images of a retraining step.")] = 128,
    limit: Annotated[int | None, typer.Option(help="At most so many test images.")] = None,
    streams: Streams = "select",
    holdout: Annotated[str, typer.Option(help="Images that are set aside: train:SHARE, test:SHARE, none.")] = "none",
    data_root: DataRoot = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    workers: Workers = 0,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="The first seed: of samples, held-out images and order.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/study-effectiveness-MODEL-DATA by default.")] = None,
) -> None:
    """Remove the same share of every unit by each metric, and measure what is left (the paper's Figs. 2 and 4).

    The same command again goes on where it stopped. Several processes share the rows:
    torchrun --nproc-per-node N -m secateur study effectiveness ...

    Examples:

        secateur study effectiveness resnet56=w.safetensors --data cifar10

        secateur study effectiveness vgg16=v.pt --metric gsd,di --epochs 150
    """
    from secateur.base.batches import device_of
    from secateur.cli.columns import columns
    from secateur.cli.networks import trained_networks
    from secateur.cli.opening import numbers, open_data
    from secateur.cli.studies.common import about_images, say_where, study_folder, typed
    from secateur.studies.effectiveness_study.study import effectiveness
    from secateur.studies.fast_evaluate import BATCH

    first = models[0].partition("=")[0]
    found = open_data(data, first, root=data_root, mean=mean, std=std, size=size, holdout=holdout, seed=seed)
    folder = study_folder(out, "effectiveness", "-".join(name.partition("=")[0] for name in models), data)
    networks = trained_networks(models, weights, found, device, seed)
    batch = BATCH if device_of(next(iter(networks.values()))).type == "cpu" else 256
    leads = os.environ.get("RANK", "0") == "0"  # of torchrun's processes, only the first one speaks
    with phases(leads) as show:
        rows = effectiveness(
            networks,
            found.loader("train", 128, seed=seed, workers=workers),
            found.loader("test", batch, limit=limit, seed=seed, workers=workers),
            folder,
            retrain_on=lambda number: found.loader(
                "train", batch_size, augment=augment, shuffle=True, seed=number, workers=workers
            ),
            about={**about_images(data, found, holdout, limit, augment, batch_size), "seed": seed},
            command=typed(),
            progress=show,
            metrics=[_metric(name) for name in names_in(metric or ["all"])],
            ratios=numbers(ratios, "--ratios") or (),
            seeds=tuple(range(seed, seed + seeds)),
            units=units,
            streams=streams,
            images=images,
            map_images=map_images,
            repair=repair,
            repair_images=repair_images,
            epochs=epochs,
            preset=preset,
            lr=lr,
        )
    if leads:
        titles, lines = _table(rows)
        console.print(columns(titles, lines, numbers=titles[2:]), markup=False, soft_wrap=True)
        say_where(folder)


def _metric(text: str) -> Any:
    """A metric's name with its options; `package.module:function` as the function itself."""
    import importlib
    import sys

    from secateur.errors import ScoreError

    home, _, name = text.partition(":")
    if not name or "=" in name:
        return text
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it; a console script has not
    try:
        return getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise ScoreError(f"{text!r} should be package.module:function of your own metric: {error}") from error
    finally:
        sys.path[:] = before


def _table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Networks and metrics downwards, ratios across: the last stage that was measured."""
    stage = next(name for name in ("retrained", "repaired", "accuracy") if name in rows[0])
    ratios = sorted({row["ratio"] for row in rows})
    lines: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["ratio"]):
        spread = row["spread" if stage == "accuracy" else f"{stage}_spread"]
        cell = f"{row[stage]:.2f}" + ("" if spread is None else f" ±{spread:.2f}")
        lines.setdefault((row["network"], row["metric"]), []).append(cell)
    return ["network", "metric", *(f"{ratio:.0%}" for ratio in ratios)], [
        [*key, *cells] for key, cells in lines.items()
    ]
