"""`secateur study effectiveness`: which metric picks the channels that can be removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli import early_checks
from secateur.cli.common import console, friendly, resumable, typed_command
from secateur.cli.early_checks import Early
from secateur.cli.from_settings import options_from_settings
from secateur.cli.model_argument import resolve
from secateur.cli.networks import check_trained
from secateur.cli.options import DeviceOptions, UndividedData, Weights, task_for
from secateur.cli.studies.common import StudyImages, StudyOutput, is_first_process, print_results
from secateur.measuring.quality_words import QualityWords
from secateur.measuring.tasks import task_of
from secateur.studies.effectiveness_study.settings import EffectivenessSettings

if TYPE_CHECKING:
    from secateur.base.batches import Batches


@friendly
@options_from_settings
def command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Networks: NAME=WEIGHTS, or folders of runs"),
        Early(early_checks.network),
    ],
    settings: EffectivenessSettings,
    data: UndividedData,
    images: StudyImages,
    device: DeviceOptions,
    output: StudyOutput,
    weights: Weights = None,
) -> None:
    """Remove the same fraction of every unit by each metric, and measure accuracy (the paper's Figs. 2 and 4).

    With --task, the quality of the task is measured instead.

    The same command continues a study that was stopped.

    Several processes share the rows: torchrun --nproc-per-node N -m secateur study effectiveness ...

    Examples:

        secateur study effectiveness resnet56=w.safetensors --data cifar10

        secateur study effectiveness vgg16=v.pt --metrics gsd,di --epochs 150
    """
    check_trained(models, weights)
    from secateur.base.batches import device_of, move
    from secateur.cli.columns import columns
    from secateur.cli.networks import trained_networks
    from secateur.studies.effectiveness_study.study import effectiveness
    from secateur.studies.fast_evaluate import BATCH

    names = [resolve(text).label for text in models]
    data = data.known_for(models[0])
    settings = replace(settings, task=task_for(models[0], settings.task))
    found = data.open(models[0], settings.seed, settings.task)
    networks = trained_networks(models, weights, found, device, settings.seed)
    batch = BATCH if device_of(next(iter(networks.values()))).type == "cpu" else 256
    folder = output.folder("effectiveness", "-".join(names), data.name)

    def retrain_on(seed: int) -> Batches:
        return found.loader("train", images.batch_size, augment=images.augment, shuffle=True, seed=seed)

    with resumable(typed_command()):
        rows = effectiveness(
            networks,
            found.loader("train", 128, seed=settings.seed),
            found.loader("test", batch, limit=images.limit, seed=settings.seed),
            folder,
            settings=replace(settings, metrics=tuple(_own_function(name) for name in settings.metrics)),
            retrain_on=retrain_on,
            example=move(found.example(), device_of(next(iter(networks.values())))),
            provenance=images.provenance(data, found),
        )
    if is_first_process():
        titles, lines = _table(rows, QualityWords.of(task_of(settings.task)))
        console.print(columns(titles, lines, numbers=titles[2:]), soft_wrap=True)
        print_results(folder)


def _own_function(metric: Any) -> Any:
    """`package.module:function` as the user's function; a metric's name, also with options, unchanged."""
    import importlib
    import sys

    from secateur.errors import ScoreError

    home, _, name = metric.partition(":")
    if not name or "=" in name:
        return metric
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # `python -m` does this, but a console script does not
    try:
        return getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise ScoreError(f"{metric!r} must be package.module:function of your own metric: {error}") from error
    finally:
        sys.path[:] = before


def _table(rows: list[dict[str, Any]], words: QualityWords) -> tuple[list[str], list[list[str]]]:
    """One line per network and metric, one column per ratio: the quality after the last stage that was measured."""
    stage = next(name for name in ("retrained", "repaired", "accuracy") if name in rows[0])
    ratios = sorted({row["ratio"] for row in rows})
    lines: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: row["ratio"]):
        spread = row["spread" if stage == "accuracy" else f"{stage}_spread"]
        numbers = [words.scaled(value).rstrip("%") for value in (row[stage], spread) if value is not None]
        cell = " ±".join(numbers)
        lines.setdefault((row["network"], row["metric"]), []).append(cell)
    return ["network", "metric", *(f"{ratio:.0%}" for ratio in ratios)], [
        [*key, *cells] for key, cells in lines.items()
    ]
