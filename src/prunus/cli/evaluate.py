"""`prunus evaluate`: accuracy, or what the task's quality is, and loss of a network on a data set."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, complain, console, friendly
from prunus.cli.options import DataOptions, DeviceOptions, Model, Part, Weights, options_from_settings, task_for
from prunus.errors import DataError
from prunus.tasks import Task, is_classification, task_of
from prunus.tasks.quality import QualityWords, TaskOptions
from prunus.util.progress import shown, steps

if TYPE_CHECKING:
    from prunus.tasks.evaluate import Evaluation


@friendly
@options_from_settings
def command(
    model: Model,
    data: DataOptions,
    task: TaskOptions,
    device: DeviceOptions,
    weights: Weights = None,
    pruned: Annotated[
        Path | None,
        typer.Option(help="Folder of the pruned network: plan.json, model.safetensors"),
        Early(early_checks.folder),
    ] = None,
    part: Part = "test",
    batch_size: Annotated[int, typer.Option(help="Number of images in a batch", min=1)] = 256,
    limit: Annotated[
        int | None, typer.Option(help="Largest number of images; a sample with the same share of each class", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the held-out images and of the sample", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Measure the accuracy of a network, or the quality of another task.

    Examples:

        prunus evaluate resnet56 --weights resnet56.safetensors --data cifar10

        prunus evaluate runs/prune-resnet56-cifar10

        prunus evaluate resnet56 --pruned small --data cifar10

        prunus evaluate nets:unet --task segmentation --data folder:street
    """
    if pruned is not None and weights is not None:
        raise DataError("a pruned network has its own weights: give either --weights or --pruned")
    from prunus.cli.inputs import checked_part, note_untrained, open_model
    from prunus.graph.files import load
    from prunus.tasks.evaluate import evaluate, too_good
    from prunus.util.batches import order_channels_last

    data = data.known_for(model)
    wanted = task_of(task_for(model, task.task))
    images = data.open(model, seed, wanted)
    loader = images.loader(checked_part(part), batch_size, limit=limit, seed=seed)
    network = open_model(model, images, weights, seed=seed)
    if pruned is not None:
        network = load(pruned, network)
    order_channels_last(network.to(device.pick()))
    start = time.perf_counter()
    with shown(None, steps(f"{part} images")) as report:
        found = evaluate(network, loader, task=wanted, progress=report)
    seconds = time.perf_counter() - start
    if as_json:
        words = {"model": model, "data": data.data, "part": part, **_figures(found, wanted), "seconds": seconds}
        console.print_json(json.dumps(words))
    else:
        _say(found, wanted, f"{model} on {images.name}, {part}", seconds)
    if pruned is None:
        note_untrained(model, weights)
    if not math.isfinite(found.loss):
        complain(
            "warning", "the network's outputs are NaN or infinite: check the weights, and mean and std of the images"
        )
    suspicion = too_good(found) if part == "holdout" and is_classification(wanted) else None
    if suspicion:
        complain("warning", suspicion)


def _figures(found: Evaluation, task: Task) -> dict[str, Any]:
    """top1 and top5 of a classifier, the named quality of any other network; loss and number of images."""
    measured = task.measured
    quality: dict[str, Any] = {"quality": {"name": measured.name, "unit": measured.unit, "value": found.quality}}
    if is_classification(task):
        quality = {"top1": found.quality, "top5": found.top5}
    loss = found.loss if math.isfinite(found.loss) else None
    return {**quality, "loss": loss, "num_images": found.num_images}


def _say(found: Evaluation, task: Task, title: str, seconds: float) -> None:
    console.print(f"{title}: {found.num_images:,} images")
    words = QualityWords.of(task)
    name = "top-1" if is_classification(task) else words.name
    width = max(5, len(name))
    console.print(f"{name:<{width}}  {words.shown(found.quality)}")
    if found.top5 is not None:
        console.print(f"{'top-5':<{width}}  {100 * found.top5:.2f}%")
    console.print(f"{'loss':<{width}}  {found.loss:.4f}")
    console.print(f"{seconds:.1f} s, {found.num_images / seconds:,.0f} images/s")
