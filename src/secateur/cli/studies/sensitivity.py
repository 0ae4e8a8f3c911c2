"""`secateur study sensitivity`: two ways of choosing the units to prune, iteration by iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from secateur.cli import early_checks
from secateur.cli.common import console, friendly, resumable, typed_command
from secateur.cli.early_checks import Early
from secateur.cli.from_settings import options_from_settings
from secateur.cli.model_argument import resolve
from secateur.cli.networks import check_trained
from secateur.cli.options import DataOptions, DeviceOptions, Weights, task_for
from secateur.cli.studies.common import StudyImages, StudyOutput, is_first_process, print_results
from secateur.measuring.quality_words import QualityWords
from secateur.studies.sensitivity_study.settings import SensitivityStudySettings


@friendly
@options_from_settings
def command(
    model: Annotated[
        str, typer.Argument(help="Network: NAME=WEIGHTS, or the folder of a run"), Early(early_checks.network)
    ],
    settings: SensitivityStudySettings,
    data: DataOptions,
    images: StudyImages,
    device: DeviceOptions,
    output: StudyOutput,
    weights: Weights = None,
) -> None:
    """Prune and retrain by Algorithm 1 and by the analysis of Li et al., side by side (the paper's Fig. 5).

    Both start from the same network and remove the same MACs in each iteration.
    The same command continues a study that was stopped.

    Two processes take one arm each: torchrun --nproc-per-node 2 -m secateur study sensitivity ...

    Examples:

        secateur study sensitivity resnet56=w.safetensors --data cifar10

        secateur study sensitivity resnet56=w.safetensors --start runs/prune
    """
    check_trained([model], weights)
    from secateur.base.batches import device_of, move
    from secateur.cli.columns import columns
    from secateur.cli.networks import trained_networks
    from secateur.studies.sensitivity_study.study import sensitivity

    name = resolve(model).label
    data = data.known_for(model)
    settings = replace(settings, task=task_for(model, settings.task))
    found = data.open(model, settings.seed, settings.task)
    network = next(iter(trained_networks([model], weights, found, device, settings.seed).values()))
    folder = output.folder("sensitivity", name, data.name)
    with resumable(typed_command()):
        rows = sensitivity(
            network,
            found.loader("train", images.batch_size, augment=images.augment, shuffle=True, seed=settings.seed),
            found.loader("holdout", 256, limit=images.limit, seed=settings.seed),
            folder,
            test=found.loader("test", 256, limit=images.limit, seed=settings.seed) if found.has("test") else None,
            score_on=found.loader("train", 256, seed=settings.seed),
            example=move(found.example(), device_of(network)),
            provenance=images.provenance(data, found),
            **vars(settings),
        )
    if is_first_process():
        titles = ["method", "iteration", "MACs removed", "as cut", "held-out", "test"]
        lines = [_line(row, settings.quality) for row in rows]
        console.print(columns(titles, lines, numbers=titles[1:]), soft_wrap=True)
        print_results(folder)


def _line(row: dict[str, Any], words: QualityWords) -> list[str]:
    parts = [row[part] for part in ("cut", "holdout", "test")]
    cells = ["-" if value is None else words.scaled(value).rstrip("%") for value in parts]
    return [row["method"], str(row["iteration"]), f"{row['macs_removed']:.1%}", *cells]
