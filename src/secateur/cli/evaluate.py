"""`secateur evaluate`: top-1, top-5 and loss of a network on a data set."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.common import complaints, console, friendly, progress
from secateur.cli.from_settings import options_from_settings
from secateur.cli.options import DeviceOptions, Model, RequiredData


@friendly
@options_from_settings
def command(
    model: Model,
    data: RequiredData,
    device: DeviceOptions,
    weights: Annotated[Path | None, typer.Option(help="Weight file (.safetensors, .pt, .pth, .th).")] = None,
    pruned: Annotated[Path | None, typer.Option(help="Folder of MODEL pruned: plan.json, model.safetensors.")] = None,
    part: Annotated[str, typer.Option(help="Which images: test, holdout or train.")] = "test",
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 256,
    limit: Annotated[int | None, typer.Option(help="At most so many images, the same share of each class.")] = None,
    seed: Annotated[int, typer.Option(help="Chooses held-out images and the sample of --limit.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
) -> None:
    """Measure how often a network is right.

    Examples:

        secateur evaluate resnet56 --weights resnet56.safetensors --data cifar10

        secateur evaluate resnet56 --pruned runs/prune-resnet56-cifar10 --data cifar10
    """
    import torch

    from secateur.channels.files import load
    from secateur.cli.opening import open_model
    from secateur.errors import DataError
    from secateur.measuring.accuracy import evaluate, too_good

    if pruned is not None and weights is not None:
        raise DataError("--pruned brings its own weights: give either --weights or --pruned")
    if part not in ("test", "holdout", "train"):
        raise DataError(f"--part should be test, holdout or train, not {part!r}")
    images = data.open(model, seed)
    network = open_model(model, images, weights, seed=seed)
    if pruned is not None:
        network = load(pruned, network)
    network.to(device.pick(), memory_format=torch.channels_last)  # type: ignore[call-overload]
    loader = images.loader(part, batch_size, limit=limit, seed=seed)  # type: ignore[arg-type]
    start = time.perf_counter()
    with progress() as bar:
        task = bar.add_task(f"{part} images", total=len(loader), note="")
        found = evaluate(network, loader, progress=lambda done, _total: bar.update(task, completed=done))
    seconds = time.perf_counter() - start
    if as_json:
        words = {"model": model, "data": data.data, "part": part, "top1": found.top1, "top5": found.top5}
        console.print_json(json.dumps({**words, "loss": found.loss, "images": found.num_images, "seconds": seconds}))
    else:
        console.print(f"{model} on {images.name}, {part}: {found.num_images:,} images")
        console.print(f"top-1  {100 * found.top1:.2f}%")
        if found.top5 is not None:
            console.print(f"top-5  {100 * found.top5:.2f}%")
        console.print(f"loss   {found.loss:.4f}")
        console.print(f"{seconds:.1f} s, {found.num_images / seconds:,.0f} images/s")
    if weights is None and pruned is None:
        complaints.print("[yellow]note:[/] no --weights were given, so this is the network before any training")
    suspicion = too_good(found) if part == "holdout" else None
    if suspicion:
        complaints.print(f"[yellow]warning:[/] {suspicion}", soft_wrap=True)
