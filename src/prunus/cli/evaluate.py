"""`prunus evaluate`: the quality of a network on a data set (accuracy, or what its task measures), and its loss."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import Answer, complain, friendly, say
from prunus.cli.images import DataOptions, task_on
from prunus.cli.network import open_model, resolve
from prunus.cli.options import DeviceOptions, Model, NumImages, Part, Weights
from prunus.errors import DataError
from prunus.tasks import task_of
from prunus.tasks.quality import QualityText, TaskOptions
from prunus.util.progress import shown, steps

if TYPE_CHECKING:
    from prunus.tasks.evaluate import Evaluation


def figures(measured: Evaluation, text: QualityText) -> dict[str, str]:
    """Quality, details and loss as text, by name."""
    details = {"top-5" if name == "top5" else name: text.shown(value) for name, value in measured.details.items()}
    return {text.name: text.shown(measured.quality), **details, "loss": f"{measured.loss:.4f}"}


@friendly
def command(
    model: Model,
    data: DataOptions,
    task: TaskOptions,
    device: DeviceOptions,
    weights: Weights = None,
    part: Part = "test",
    batch_size: Annotated[int, typer.Option(help="Number of images in a batch", min=1)] = 256,
    num_images: NumImages = None,
    seed: Annotated[int, typer.Option(help="Seed of the held-out images and of the sample", min=0)] = 0,
) -> Answer:
    """Measure the accuracy of a network, or the quality of another task.

    On images without labels: how often a pruned network agrees with its original.

    Examples:

        prunus evaluate resnet56 --data cifar10 --weights resnet56.safetensors

        prunus evaluate runs/prune-resnet56-cifar10

        prunus evaluate resnet56=small --data cifar10

        prunus evaluate nets:unet --data folder:street --task segmentation
    """
    named = resolve(model, weights)
    data = data.known_for(named)
    from prunus.tasks.evaluate import evaluate, too_good
    from prunus.util.batches import order_channels_last

    wanted = task_of(named.task(task.task))
    images = data.open(named, seed, wanted)
    loader = images.loader(part, batch_size, limit=num_images, seed=seed)  # type: ignore[arg-type]
    network = open_model(named, images, seed=seed)
    home = device.pick()
    order_channels_last(network.to(home))
    if not images.labelled and named.folder is None:
        raise DataError(
            f"{images.name} has no labels, and without them only a pruned network can be measured, by its agreement "
            "with the original: give the folder of a run"
        )
    wanted = task_on(images, wanted, lambda: open_model(named.original(), images, seed=seed).to(home))
    text = QualityText.of(wanted)
    start = time.perf_counter()
    with shown(None, steps(f"{part} images")) as report:
        measured = evaluate(network, loader, task=wanted, progress=report)
    seconds = time.perf_counter() - start
    say(f"{model} on {images.name}, {part}: {measured.num_images:,} images")
    lines = figures(measured, text)
    for name, value in lines.items():
        say(f"{name:<{max(map(len, lines))}}  {value}")
    say(f"{seconds:.1f} s, {measured.num_images / seconds:,.0f} images/s")
    named.note_untrained()
    if not math.isfinite(measured.loss):
        complain(
            "warning", "the network's outputs are NaN or infinite: check the weights, and mean and std of the images"
        )
    suspicion = too_good(measured) if part == "holdout" and wanted.chance is not None else None
    if suspicion:
        complain("warning", suspicion)
    record: dict[str, Any] = {
        "model": model,
        "data": data.data,
        "part": part,
        "num_images": measured.num_images,
        "seconds": seconds,
    }
    record["quality"] = {"name": text.name, "unit": text.unit, "value": measured.quality}
    return Answer({**record, "details": measured.details, "loss": measured.loss})
