"""`prunus study NAME`: the paper's experiments as commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from prunus.cli.console import (
    Answer,
    Early,
    choice,
    console,
    default_folder,
    existing_folder,
    friendly,
    resumable,
    say,
    table,
    typed_command,
)
from prunus.cli.images import DataOptions, UndividedData, UserData, task_on
from prunus.cli.network import NamedModel, check_model_name, open_graph, open_model, open_network, resolve
from prunus.cli.options import BySet, Classes, DeviceOptions, Model, TrainingImages, Weights, Without
from prunus.deciding.settings import StreamSettings
from prunus.errors import DataError, ModelError, PlanError
from prunus.run.settings import RARE
from prunus.studies.settings import DECIDED, EffectivenessSettings, SensitivityStudySettings, TimingSettings
from prunus.tasks import task_of
from prunus.tasks.quality import QualityText
from prunus.util.options import names, option
from prunus.util.progress import is_first_process
from prunus.util.text import big_number

if TYPE_CHECKING:
    from torch import nn

    from prunus.cli.images import AnyData
    from prunus.studies.folder import Provenance
    from prunus.util.batches import Batches

D = TypeVar("D", bound=DataOptions)
S = TypeVar("S", EffectivenessSettings, SensitivityStudySettings)

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def root() -> None:
    """The paper's experiments, on any network and data set: a table, pictures and a page in one folder.

    The same command continues a study that was stopped.

    Examples:

        prunus study effectiveness resnet56=w.safetensors --data cifar10
    """


# -- what the studies share


@dataclass(frozen=True)
class StudyImages(TrainingImages):
    num_eval_images: int | None = option(
        None, "Number of held-out and of test images; all by default", group="Data", least=1
    )

    def provenance(self, data: DataOptions, images: AnyData) -> Provenance:
        """The command line, and everything that is needed to get the same images again."""
        from prunus.studies.folder import Provenance

        about: dict[str, Any] = {"data": data.data, "num_eval_images": self.num_eval_images}
        if not isinstance(images, UserData):
            about |= {"mean": images.mean, "std": images.std, "size": images.shape[-1], "holdout": data.holdout}
            about |= {"augment": self.augment, "batch_size": self.batch_size}
        return Provenance(about, typed_command())


Out = Annotated[
    Path | None, typer.Option(help="Study folder; runs/study-NAME-MODEL-DATA by default", rich_help_panel="Output")
]


def results_in(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Answer:
    from prunus.report.run_page import write_report

    page = write_report(folder)
    say(f"\nresults in {folder}: study.json, table.csv, table.tex, and pictures as .png and .svg")
    say(f"report: {page} (open it in a browser)")
    return Answer({"folder": folder, "page": page, "rows": rows})


def open_study(
    models: list[str], weights: Path | None, data: D, settings: S, device: DeviceOptions
) -> tuple[list[NamedModel], D, AnyData, dict[str, nn.Module], S]:
    """Trained networks, also by labels that differ, their images, and the settings with the task of both."""
    named = [resolve(text, weights if len(models) == 1 else None) for text in models]
    for each in named:
        if not each.has_weights:
            raise ModelError(
                f"a study needs trained networks: give the weight file of {each.typed} as {each.typed}=FILE"
            )
    data = data.known_for(named[0])
    wanted = task_of(named[0].task(settings.task))
    images = data.open(named[0], settings.seed, wanted)
    home, networks = device.pick(), dict[str, Any]()
    for each in named:
        label = each.label
        if label in networks:
            label = f"{label} ({each.weights.stem if each.weights else len(networks) + 1})"
        networks[label] = open_model(each, images, seed=settings.seed).to(home)
    if not images.labelled and len(networks) > 1:
        raise DataError(
            f"{images.name} has no labels, and each network would be compared with itself: give one network at a time"
        )
    task = task_on(images, wanted, lambda: next(iter(networks.values())))
    return named, data, images, networks, replace(settings, task=task)


# -- effectiveness: which metric picks the channels that can be removed


@app.command()
@friendly
def effectiveness(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Networks: NAME=WEIGHTS, or folders of runs"),
        Early(check_model_name),
    ],
    settings: EffectivenessSettings,
    data: UndividedData,
    images: StudyImages,
    device: DeviceOptions,
    weights: Weights = None,
    out: Out = None,
) -> Answer | None:
    """Remove the same fraction of every unit by each metric, and measure accuracy (the paper's Figs. 2 and 4).

    With --task, the quality of the task is measured instead.

    The same command continues a study that was stopped.

    Several processes share the rows: torchrun --nproc-per-node N -m prunus study effectiveness ...

    Examples:

        prunus study effectiveness resnet56=w.safetensors --data cifar10

        prunus study effectiveness vgg16=v.pt --data cifar10 --metrics gsd,di
    """
    named, data, opened, networks, settings = open_study(models, weights, data, settings, device)
    from prunus.studies.effectiveness_study import BATCH
    from prunus.studies.effectiveness_study import effectiveness as study
    from prunus.studies.effectiveness_tables import STAGES, pivoted
    from prunus.util.batches import device_of, move

    home = device_of(next(iter(networks.values())))
    batch = BATCH if home.type == "cpu" else 256
    folder = out or default_folder("-".join(["study-effectiveness", *(each.label for each in named), data.name]))

    def retrain_on(seed: int) -> Batches:
        return opened.loader("train", images.batch_size, augment=images.augment, shuffle=True, seed=seed)

    with resumable(typed_command()):
        rows = study(
            networks,
            opened.loader("train", 128, seed=settings.seed),
            opened.loader("test", batch, limit=images.num_eval_images, seed=settings.seed),
            folder,
            settings=settings,
            retrain_on=retrain_on,
            example=move(opened.example(), home),
            provenance=images.provenance(data, opened),
        )
    if not is_first_process():
        return None
    text = QualityText.of(task_of(settings.task))
    unit = f", {text.unit}" if text.unit else ""
    error = "; mean ± standard error over the seeds" if rows[0]["seeds"] > 1 else ""
    for number, stage in enumerate(stage for stage in STAGES if stage in rows[0]):
        titles, cells = pivoted(rows, stage, text)
        say(f"{chr(10) if number else ''}{text.name} {STAGES[stage]}{unit}, by the fraction of channels removed{error}")
        console.print(table(titles, cells, numbers=titles[2:]))
    return results_in(folder, rows)


# -- sensitivity: two ways of choosing the units to prune, iteration by iteration


@app.command()
@friendly
def sensitivity(
    model: Annotated[
        str, typer.Argument(help="Network: NAME=WEIGHTS, or the folder of a run"), Early(check_model_name)
    ],
    settings: Annotated[SensitivityStudySettings, BySet(*RARE), Without(*DECIDED, "alpha", "timing")],
    data: DataOptions,
    images: StudyImages,
    device: DeviceOptions,
    weights: Weights = None,
    out: Out = None,
) -> Answer | None:
    """Prune and retrain by Algorithm 1 and by the analysis of Li et al., side by side (the paper's Fig. 5).

    Both start from the same network and remove the same MACs in each iteration.
    The same command continues a study that was stopped.

    Two processes take one arm each: torchrun --nproc-per-node 2 -m prunus study sensitivity ...

    Examples:

        prunus study sensitivity resnet56=w.safetensors --data cifar10

        prunus study sensitivity resnet56=w.pt --data cifar10 --start runs/a
    """
    (named,), data, opened, networks, settings = open_study([model], weights, data, settings, device)
    from prunus.studies.sensitivity_study import sensitivity as study
    from prunus.util.batches import device_of, move

    (network,), seed = networks.values(), settings.seed
    folder = out or default_folder(f"study-sensitivity-{named.label}-{data.name}")
    with resumable(typed_command()):
        rows = study(
            network,
            opened.loader("train", images.batch_size, augment=images.augment, shuffle=True, seed=seed),
            opened.loader("holdout", 256, limit=images.num_eval_images, seed=seed),
            folder,
            test=opened.loader("test", 256, limit=images.num_eval_images, seed=seed) if opened.has("test") else None,
            score_on=opened.loader("train", 256, seed=seed),
            example=move(opened.example(), device_of(network)),
            provenance=images.provenance(data, opened),
            **vars(settings),
        )
    if not is_first_process():
        return None
    titles = ["method", "iteration", "MACs removed", "before repair", "held-out", "test"]
    lines = []
    for row in rows:
        parts = [row[part] for part in ("cut", "holdout", "test")]
        cells = ["-" if value is None else settings.quality.scaled(value).rstrip("%") for value in parts]
        lines.append([row["method"], str(row["iteration"]), f"{row['macs_removed']:.1%}", *cells])
    console.print(table(titles, lines, numbers=titles[1:]))
    return results_in(folder, rows)


# -- structure: weights and MACs by layer or block, original and pruned


@app.command()
@friendly
def structure(
    network: Annotated[
        str, typer.Argument(help="Folder of a pruned network, or a model's name with --widths"), Early(check_model_name)
    ],
    units: StreamSettings,
    by: Annotated[str, typer.Option(help="One row per layer or per block"), choice("by", "layer", "block")] = "layer",
    widths: Annotated[
        str | None, typer.Option(help="Channels to keep: 11,39,... in the order of the units, or UNIT=11,UNIT=39")
    ] = None,
    classes: Classes = None,
    out: Out = None,
) -> Answer | None:
    """Show the cost of each part of a network before and after pruning, as in the paper's supplement.

    With a folder, --streams is what the network was pruned with.

    Examples:

        prunus study structure runs/prune-resnet56-cifar10 --by block

        prunus study structure lenet5 --widths 4,9,60,40
    """
    from prunus.graph.channel_graph import trace
    from prunus.studies.folder import Provenance, StudyFolder
    from prunus.studies.structure_study import COLUMNS, plan_of_widths, write_structure
    from prunus.studies.structure_study import structure as study

    opened = open_network(resolve(network), classes)
    plan = opened.plan
    if (plan is None) == (widths is None):
        raise PlanError("give either the folder of a pruned network, or a network's name and --widths")
    whole = opened.model if opened.original is None else opened.original
    graph = trace(whole, opened.example(), **({"streams": units.streams} if plan is None else plan.ways))
    if plan is None:
        parts = names(str(widths))
        pairs = [part.rpartition("=") for part in parts]
        try:
            by_unit = {unit: int(width) for unit, _, width in pairs} if all("=" in part for part in parts) else None
            plan = plan_of_widths(graph, [int(part) for part in parts] if by_unit is None else by_unit)
        except ValueError as error:
            raise PlanError(f"--widths must be 11,39,... or UNIT=11,UNIT=39; got {widths!r}") from error
    rows = study(graph, plan, by)  # type: ignore[arg-type]
    big = ("params", "params_pruned", "macs", "macs_pruned")
    cells = [[big_number(value) if key in big else str(value) for key, value in row.items()] for row in rows]
    titles, total = list(COLUMNS.values()), rows[-1]
    console.print(table(titles, cells, set(titles) - {"part"}))
    say(f"\n{total['params_pruned']:,} weights and {total['macs_pruned']:,} MACs remain")
    settings = {"network": network, "by": by, "widths": widths, "classes": classes, **vars(units)}
    folder = out or default_folder(f"study-structure-{opened.name}-{by}")
    place = StudyFolder(folder, "structure", settings, Provenance(command=typed_command()))
    return results_in(write_structure(rows, f"{opened.name}: cost of each {by}", place), rows)


# -- table: finished runs among the rows of the paper's Tables 1 and 2

TITLES = {  # short ones, so that a line fits a terminal
    "method": "method",
    "by": "by",
    "base_top1": "before",
    "top1": "top-1",
    "top1_drop": "drop",
    "top5": "top-5",
    "top5_drop": "drop",
    "macs": "MACs",
    "macs_removed": "cut",
    "params": "weights",
    "params_removed": "cut",
}


@app.command("table")
@friendly
def results_table(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of finished `prunus prune` runs"), Early(existing_folder)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Network, if a folder does not record it; without folders, the rows to print")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set, if a folder does not record it; without folders, the rows to print")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write a study folder: table.csv, table.tex")] = None,
) -> Answer:
    """Print runs as rows among the paper's published rows of their network and data set.

    Published figures are marked "as published". Without runs, only published rows are printed.

    Examples:

        prunus study table runs/prune-resnet56-cifar10

        prunus study table --model resnet56 --data cifar10
    """
    from prunus.studies.folder import Provenance, StudyFolder, text_cells
    from prunus.studies.table_study import OWN, figure_text, write_table
    from prunus.studies.table_study import table as study

    result = study(runs or (), model=model, data=data)
    for (network, images), group in groupby(result.rows, key=lambda row: (row["network"], row["data"])):
        rows = [{**row, "by": row["by"].replace("prunus", OWN)} if row["source"] == OWN else row for row in group]
        # Columns that no published row has, such as top-5 on CIFAR, would make the line too long for a terminal.
        others = [row for row in rows if row["source"] != OWN] or rows
        used = {key: title for key, title in TITLES.items() if any(row[key] is not None for row in others)}
        titles, cells = text_cells(rows, used, figure_text)
        say(f"{network} on {images}, as published unless marked; accuracies and cuts in %")
        console.print(table(titles, cells, set(titles) - {"method", "by"}))
    say("\n".join(["", *result.notes]))
    if out is not None:
        asked = {"runs": [str(run) for run in runs or ()], "model": model, "data": data}
        results_in(write_table(result, StudyFolder(out, "table", asked, Provenance(command=typed_command()))), ())
    return Answer({"rows": result.rows, "notes": result.notes})


# -- timing: seconds to score each layer by each metric (the paper's Fig. 6)


@app.command()
@friendly
def timing(
    model: Model,
    settings: TimingSettings,
    data: UndividedData,
    device: DeviceOptions,
    units: StreamSettings,
    weights: Weights = None,
    threads: Annotated[int | None, typer.Option(help="Number of torch threads", min=1, max=os.cpu_count())] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch in forward passes", min=1)] = 32,
    out: Out = None,
) -> Answer | None:
    """Measure how long each metric takes to score each layer, with and without the time for the feature maps.

    Feature maps are computed on the device and scored on the CPU.

    Examples:

        prunus study timing vgg16 --data cifar10

        prunus study timing vgg16 --data cifar10 --num-images 500
    """
    named = resolve(model, weights)
    data = data.known_for(named)
    import torch

    from prunus.studies.folder import Provenance, StudyFolder
    from prunus.studies.timing_study import COLUMNS, draw_timing
    from prunus.studies.timing_study import timing as study

    images = data.open_classes(named, settings.seed)
    graph = open_graph(named, images, seed=settings.seed, device=device.pick(), streams=units.streams)
    asked = {"model": model, "data": data.data, "size": data.size, "threads": threads, **vars(units)}
    asked |= {"weights": None if weights is None else str(weights), **asdict(settings)}
    place = out or default_folder(f"study-timing-{model}-{data.name}")
    folder = StudyFolder(place, "timing", asked, Provenance(command=typed_command()))
    folder.start()
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with resumable(typed_command()):
            loader = images.loader("train", batch_size, seed=settings.seed)
            times = study(graph, loader, settings=settings, folder=folder)
    finally:
        torch.set_num_threads(before)
    shape = "x".join(str(side) for side in images.shape[1:])
    pictures = draw_timing(times, model, f"{shape} pixels", folder.path)
    folder.finish(f"Seconds to score each layer of {model}", times.rows, pictures, times.notes, columns=COLUMNS)
    metrics = list(dict.fromkeys(row["metric"] for row in times.rows))
    layers: dict[str, dict[str, Any]] = {}
    for row in times.rows:
        layers.setdefault(row["layer"], {})[row["metric"]] = row
    lines = []
    for layer, rows in layers.items():
        cells = [f"{rows[name]['seconds']:.2e}" if name in rows else "-" for name in metrics]
        size = [str(next(iter(rows.values()))[key]) for key in ("channels", "pixels")]
        lines.append([layer, *size, *cells, f"{max(row['maps_seconds'] for row in rows.values()):.2e}"])
    titles = ["layer", "channels", "pixels", *metrics, "maps"]
    console.print(table(titles, lines, titles[1:]))
    say("\nseconds to score all channels of a layer; maps: seconds to compute the feature maps")
    for note in times.notes:
        say(note)
    named.note_untrained()
    return results_in(folder.path, times.rows)
